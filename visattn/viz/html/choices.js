function percent(share) {
  if (share < 0.01) return "<1 %";
  return share > 0.995 && share < 1 ? ">99 %" : `${Math.round(100 * share)} %`;
}

/** A group of buttons of which one is chosen; arrow keys, Home and End go from one to the next. */
class Choice {
  constructor(group, choose) {
    this.group = group;
    this.buttons = [];
    group.addEventListener("click", (event) => {
      const button = event.target.closest("[role=radio]");
      if (button) choose(this.buttons.indexOf(button));
    });
    group.addEventListener("keydown", (event) => {
      const from = this.buttons.indexOf(document.activeElement);
      const to = stepped(event, from, this.buttons.length);
      if (from < 0 || to === null) return;
      event.preventDefault();
      event.stopPropagation();
      choose(to);
      this.buttons[to].focus();
    });
  }

  fill(buttons) {
    this.buttons = buttons;
    this.group.replaceChildren(...buttons);
  }

  /** Mark one as chosen; the Tab key leads to it, or to the first where none is. */
  mark(chosen) {
    this.buttons.forEach((button, index) => {
      button.setAttribute("aria-checked", String(index === chosen));
      button.tabIndex = index === Math.max(chosen, 0) ? 0 : -1;
    });
  }
}

/** Return where a key leads from one of `count` places, or null if it leads nowhere. */
function stepped({ key, ctrlKey, altKey, metaKey }, from, count) {
  if (ctrlKey || altKey || metaKey) return null;
  const to = { ArrowRight: from + 1, ArrowDown: from + 1, ArrowLeft: from - 1, ArrowUp: from - 1,
    Home: 0, End: count - 1 }[key];
  return to === undefined ? null : (Math.max(to, -1) + count) % count;
}

/** Buttons of a page that stand for the values of a setting; return the group. */
function segmented(id, values, now, chosen) {
  const group = new Choice($(id), (index) => {
    group.mark(index);
    chosen(values[index]);
  });
  group.buttons = [...$(id).querySelectorAll("button")];
  group.mark(values.indexOf(now));
  return group;
}
