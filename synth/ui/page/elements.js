// Elements of the page, made in one call.

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function drawn(tag, attributes = {}, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}

/** Fill a list of choices: [heading, [[value, text], …]] groups, or plain [value, text] pairs. */
export function choose(select, groups, value) {
  const option = ([each, text]) => element("option", { value: each }, text);
  select.replaceChildren(
    ...groups.map(([first, second]) =>
      Array.isArray(second)
        ? element("optgroup", { label: first }, ...second.map(option))
        : option([first, second]),
    ),
  );
  select.value = value;
}

/** Show a text and hide its place where there is none. */
export function say(place, text) {
  place.textContent = text;
  place.hidden = !text;
}

/** Count what has been done, where programs that use the page can see it. */
export function count(what) {
  const { dataset } = document.documentElement;
  dataset[what] = String(1 + Number(dataset[what] || 0));
}
