"""Words that keep their full stop.

The lists were found by asking the official tokenizer about every word of up to five letters, and
about 157,000 English words for the longer ones.
"""

# A letter glued on makes a name of these, as it does of any word: mr.x is one token.
TITLES = """
adj adm adv alex assoc asst attys atty ave brig capt cf cie cmdr col comdr cpl dept det dr drs
elec ens ft gen gov govs hon insp invt jos lieut lt maj messrs mfg mlle mme mr mrs ms msgr mt mtg
natl pfc ph pres prof profs pvt rep reps rev sen sens sfc sgt spc st ste supt supts treas vs wm
"""

# A single letter glued on does not: jan.x is two tokens.
ENDINGS = """
al ala apr ariz assn aug bancorp bhd bldg blvd bros calif co colo conn corp cos ct dak dec esq est
etc ext feb fla fri ga inc ind intl jan jr jul jun kan kans ky ltd mar md mich minn mo mon mont
neb nev nov oct okla penn plc ppte pptes ppty pptys pte ptes pty ptys rd rt sep sept seq sq sr sys
tel tenn thu thurs tue tues univ va vt wed wis wisc wyo
"""

# Words of their own, unless a capital says otherwise: "they wash." but "Seattle, Wash."
CAPITALS = "ark az del ill la mass miss ore pa tex wash"

# Only before a number: "no. 5" but "she says no."
COUNTERS = "art ca fig figs no nos op pp prop"

# A capital one of these begins a sentence, so that the letter before it ends one: "on plan B. The".
STARTERS = """
a about according additionally after an as at but earlier he her here however if in it last many
more now once one other our she since so some such that the their then there these they this we
what when while yet you
"""
