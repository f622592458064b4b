// @ts-check
/** Write amounts as sentences do; the same rules as wording.py. */

/** @param {number | null} amount */
export const gpus = (amount) => (amount === null ? "∞" : String(Math.round(amount * 1000) / 1000));
/** @param {number} amount */
export const gpuCount = (amount) => `${gpus(amount)} GPU${amount === 1 ? "" : "s"}`;
/** @param {number | null} part @param {number} whole */
export const percent = (part, whole) =>
  part === null || !(whole > 0) ? "-" : `${Math.round((100 * part) / whole)} %`;
