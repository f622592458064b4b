// The page asks again when it is told to, and not before: `node --test tests/widgets`, no packages.
import assert from "node:assert/strict";
import { test } from "node:test";

globalThis.document = { documentElement: { dataset: { prefix: "/services/runai/" } }, cookie: "a=b; _xsrf=proof" };
const network = new EventTarget();
globalThis.addEventListener = network.addEventListener.bind(network);
globalThis.removeEventListener = network.removeEventListener.bind(network);
const { Refused, call, lines } = await import("../../hub_service/api/pages/call.js");

const TOO_MANY = { title: "Too many", detail: "You ask more than 30 times a second.", hint: "Wait a moment." };

/** Answer with these replies, one after the other; returns what was asked. */
function answering(...replies) {
  const asked = [];
  globalThis.fetch = async (url, options) => {
    asked.push({ url, ...options });
    const [status, body, headers] = replies[asked.length - 1];
    return new Response(body === undefined ? null : JSON.stringify(body), { status, headers });
  };
  return asked;
}

/** Let timers wait for `pass`, which returns for how many milliseconds. */
function holding(t) {
  const waits = [];
  t.mock.method(globalThis, "setTimeout", (resume, ms) => waits.push({ resume, ms }));
  const turn = () => new Promise((next) => setImmediate(next));
  return async function pass() {
    for (let turns = 0; !waits.length; turns += 1) {
      assert.ok(turns < 1000, "nobody waits");
      await turn();
    }
    const { resume, ms } = waits.shift();
    resume();
    return ms;
  };
}

for (const [what, headers, ms] of [
  ["as long as it is told", { "Retry-After": "3" }, 3000],
  ["a second where it is not told", {}, 1000],
  ["a second where what it is told is no number", { "Retry-After": "soon" }, 1000],
]) {
  test(`refused as too much, it waits ${what} and asks the same again`, async (t) => {
    const asked = answering([429, TOO_MANY, headers], [200, { done: true }]);
    const pass = holding(t);
    const answer = call("POST", "workloads/vision/exp/suspend", { why: "tired" });

    assert.equal(await pass(), ms);

    assert.deepEqual(await answer, { done: true });
    assert.equal(asked.length, 2);
    assert.deepEqual(asked[0], asked[1]);
    assert.equal(asked[0].url, "/services/runai/api/v1/workloads/vision/exp/suspend");
    assert.equal(asked[0].headers["X-XSRFToken"], "proof");
  });
}

test("so it does where everybody together asks too much", async (t) => {
  const asked = answering([503, { code: "busy", detail: "256 submissions wait." }, { "Retry-After": "2" }], [201, { name: "exp" }]);
  const pass = holding(t);
  const answer = call("POST", "workloads", { name: "exp" });

  assert.equal(await pass(), 2000);
  assert.deepEqual(await answer, { name: "exp" });
  assert.equal(asked.length, 2);
});

test("nothing is asked again before the time has come", async (t) => {
  const asked = answering([429, TOO_MANY, { "Retry-After": "5" }], [204]);
  const pass = holding(t);
  const answer = call("DELETE", "workloads/vision/exp");
  for (let turns = 0; turns < 20; turns += 1) await new Promise((next) => setImmediate(next));

  assert.equal(asked.length, 1);
  await pass();
  assert.equal(await answer, null);
});

test("refused again, it says so in the service's words", async (t) => {
  const asked = answering([429, TOO_MANY, { "Retry-After": "1" }], [429, TOO_MANY, { "Retry-After": "1" }]);
  const pass = holding(t);
  const refused = assert.rejects(call("GET", "overview"), /^Error: You ask more than 30 times a second\. Wait a moment\.$/);

  await pass();

  await refused;
  assert.equal(asked.length, 2);
});

for (const status of [400, 403, 409, 503]) {
  test(`what is refused with ${status} is not asked again`, async () => {
    const asked = answering([status, { detail: "No." }, { "Retry-After": "1" }]);

    await assert.rejects(call("POST", "workloads"), /^Error: No\.$/);
    assert.equal(asked.length, 1);
  });
}

test("a service that says nothing that can be read is away", async () => {
  answering([502, undefined]);

  await assert.rejects(call("GET", "overview"), /^Error: The service is away\.$/);
});

// -- streams -----------------------------------------------------------------------------------

/** A stream that the test feeds; the clock and its timers are the test's, too. */
function streaming(t, reply = {}) {
  t.mock.timers.enable({ apis: ["setInterval", "Date"] });
  let feed;
  globalThis.fetch = async (_url, { signal }) => {
    const body = new ReadableStream({ start: (controller) => { feed = controller; } });
    signal.addEventListener("abort", () => feed.error(signal.reason));
    return new Response(body, { status: 200, ...reply });
  };
  return { send: (text) => feed.enqueue(new TextEncoder().encode(text)), end: () => feed.close() };
}

test("a stream is read line by line, however it is cut", async (t) => {
  const { send, end } = streaming(t);
  const found = lines("/live/gpus"), first = found.next();
  await new Promise((next) => setImmediate(next));
  send("data: ä");
  send("b\n\n:\n");
  end();

  assert.equal((await first).value, "data: äb");
  assert.deepEqual([(await found.next()).value, (await found.next()).value, (await found.next()).done], ["", ":", true]);
});

for (const [what, happens] of [
  ["is silent for three signs of life", (timers) => timers.tick(45000)],
  ["was asleep with its laptop", (timers) => { timers.setTime(3600000); timers.tick(5000); }],
  ["lost its network", () => network.dispatchEvent(new Event("offline"))],
]) {
  test(`a stream breaks that ${what}`, async (t) => {
    const { send } = streaming(t);
    const found = lines("/live/gpus"), first = found.next();
    await new Promise((next) => setImmediate(next));
    t.mock.timers.tick(44000);
    send(":\n");
    await first;
    t.mock.timers.tick(44000);
    const broken = assert.rejects(found.next(), { name: "AbortError" });
    happens(t.mock.timers);

    await broken;
  });
}

for (const [what, status, type, isFinal] of [
  ["the service", 401, "application/problem+json", true],
  ["the service", 404, "application/problem+json", true],
  ["a service that is busy", 503, "application/problem+json", false],
  ["a proxy before a service that is away", 503, "text/html", false],
  ["a hub that starts", 404, "text/html", false],
]) {
  test(`a stream is ${isFinal ? "" : "not "}refused for good by ${what} with ${status}`, async (t) => {
    streaming(t, { status, headers: { "Content-Type": type } });

    await assert.rejects(lines("/live/gpus").next(), (error) => (error instanceof Refused) === isFinal);
  });
}
