// @ts-check
/**
 * Describe a page as plain nodes and bring them into it, keeping the elements that go on existing.
 *
 * Knows nothing of what is shown. Kept elements keep focus, and clicks that are half made.
 */

/** @typedef {{tag: string, props: Record<string, any>, children: (Node_ | string)[]}} Node_ */

/**
 * @param {string} tag
 * @param {Record<string, any>} [props]
 * @param {...(Node_ | string | number | false | null | undefined | (Node_ | string | false)[])} children
 * @returns {Node_}
 */
export function h(tag, props = {}, ...children) {
  const given = children.flat().filter((child) => child !== null && child !== undefined && child !== false);
  return { tag, props, children: given.map((child) => (typeof child === "number" ? String(child) : child)) };
}

const SVG = new Set(["svg", "path", "line", "text", "g", "rect"]);
/** @type {WeakMap<object, Node_>} */
const drawn = new WeakMap();

/**
 * Make the children of an element these nodes, keeping the elements that go on existing.
 * @param {any} element @param {(Node_ | string)[]} nodes
 */
export function patch(element, nodes) {
  /** @type {Map<string, any>} */
  const there = new Map();
  [...element.childNodes].forEach((child, index) => there.set(keyOf(drawn.get(child), index), child));
  nodes.forEach((node, index) => {
    const here = element.childNodes[index];
    if (typeof node === "string") {
      if (here && !drawn.has(here)) here.data !== node && (here.data = node);
      else element.insertBefore(document.createTextNode(node), here ?? null);
      return;
    }
    const kept = there.get(keyOf(node, index));
    const made = kept ?? create(node.tag);
    if (made !== here) element.insertBefore(made, here ?? null);
    setProps(made, drawn.get(made)?.props ?? {}, node.props);
    drawn.set(made, node);
    patch(made, node.children);
  });
  while (element.childNodes.length > nodes.length) element.lastChild.remove();
}

/** @param {Node_ | undefined} node @param {number} index */
function keyOf(node, index) {
  return node ? `${node.tag} ${node.props.key ?? index}` : `text ${index}`;
}

/** @param {string} tag */
function create(tag) {
  return SVG.has(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
}

/** @param {any} element @param {Record<string, any>} before @param {Record<string, any>} now */
function setProps(element, before, now) {
  for (const name of Object.keys({ ...before, ...now })) {
    const value = now[name];
    if (name === "key" || before[name] === value) continue;
    if (name.startsWith("on")) element[name] = value ?? null;
    else if (value === undefined || value === null || value === false) element.removeAttribute(name);
    else element.setAttribute(name, String(value));
  }
}
