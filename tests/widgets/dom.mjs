// As much of a document as `patch` touches, for node.

class Text {
  constructor(data) { this.data = data; }
  get textContent() { return this.data; }
  remove() { this.parent.childNodes.splice(this.parent.childNodes.indexOf(this), 1); }
}

class Element {
  constructor(tag) { this.tag = tag; this.childNodes = []; this.attributes = new Map(); }
  get textContent() { return this.childNodes.map((child) => child.textContent).join(""); }
  get lastChild() { return this.childNodes.at(-1); }
  getAttribute(name) { return this.attributes.get(name) ?? null; }
  setAttribute(name, value) { this.attributes.set(name, value); }
  removeAttribute(name) { this.attributes.delete(name); }
  insertBefore(child, before) {
    child.parent?.childNodes.splice(child.parent.childNodes.indexOf(child), 1);
    child.parent = this;
    this.childNodes.splice(before ? this.childNodes.indexOf(before) : this.childNodes.length, 0, child);
  }
  remove() { this.parent.childNodes.splice(this.parent.childNodes.indexOf(this), 1); }
  all() { return [this, ...this.childNodes.flatMap((child) => child.all?.() ?? [])]; }
}

/** Make a new `document`, as the page scripts find it. */
export function install() {
  globalThis.document = {
    createElement: (tag) => new Element(tag),
    createElementNS: (_space, tag) => new Element(tag),
    createTextNode: (data) => new Text(data),
  };
  return globalThis.document;
}
