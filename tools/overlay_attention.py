"""Draw attention maps on photos: `visattn overlay` from a checkout, without an installation.

python tools/overlay_attention.py PHOTO... --model SPEC --method METHOD --out DIR
python tools/overlay_attention.py PHOTO --maps FILE --out FILE.png
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

if __name__ == "__main__":
    if str(ROOT) not in sys.path:  # a checkout need not be installed
        sys.path.insert(0, str(ROOT))
    from visattn.cli import main

    sys.exit(main(["overlay", *sys.argv[1:]]))
