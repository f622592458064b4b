// The page repeats a call that the service puts off, and not before: `node --test tests/widgets`, no packages.
import assert from "node:assert/strict";
import { test } from "node:test";

globalThis.document = { documentElement: { dataset: { prefix: "/services/runai/" } }, cookie: "a=b; _xsrf=proof" };
const network = new EventTarget();
globalThis.addEventListener = network.addEventListener.bind(network);
globalThis.removeEventListener = network.removeEventListener.bind(network);
const { Refused, call, lines } = await import("../../hub_service/api/pages/call.js");

const TOO_MANY_REQUESTS = { title: "Too many", detail: "You ask more than 30 times a second.", hint: "Wait a moment." };

/** Answer with these replies, one after the other; returns the requests. */
function answerWith(...replies) {
  const requests = [];
  globalThis.fetch = async (url, options) => {
    requests.push({ url, ...options });
    const [status, body, headers] = replies[requests.length - 1];
    return new Response(body === undefined ? null : JSON.stringify(body), { status, headers });
  };
  return requests;
}

/** Stop the timers; the returned function ends the next wait and returns its milliseconds. */
function stopTimers(t) {
  const waits = [];
  t.mock.method(globalThis, "setTimeout", (resume, ms) => waits.push({ resume, ms }));
  const turn = () => new Promise((next) => setImmediate(next));
  return async function endWait() {
    for (let turns = 0; !waits.length; turns += 1) {
      assert.ok(turns < 1000, "no timer waits");
      await turn();
    }
    const { resume, ms } = waits.shift();
    resume();
    return ms;
  };
}

for (const [duration, headers, ms] of [
  ["for the seconds in Retry-After", { "Retry-After": "3" }, 3000],
  ["for a second without Retry-After", {}, 1000],
  ["for a second if Retry-After is no number", { "Retry-After": "soon" }, 1000],
]) {
  test(`call with status 429 waits ${duration} and is repeated`, async (t) => {
    const requests = answerWith([429, TOO_MANY_REQUESTS, headers], [200, { done: true }]);
    const endWait = stopTimers(t);
    const answer = call("POST", "workloads/vision/exp/suspend", { why: "tired" });

    assert.equal(await endWait(), ms);

    assert.deepEqual(await answer, { done: true });
    assert.equal(requests.length, 2);
    assert.deepEqual(requests[0], requests[1]);
    assert.equal(requests[0].url, "/services/runai/api/v1/workloads/vision/exp/suspend");
    assert.equal(requests[0].headers["X-XSRFToken"], "proof");
  });
}

test("call with status 503 of a busy service waits and is repeated", async (t) => {
  const requests = answerWith([503, { code: "busy", detail: "256 submissions wait." }, { "Retry-After": "2" }], [201, { name: "exp" }]);
  const endWait = stopTimers(t);
  const answer = call("POST", "workloads", { name: "exp" });

  assert.equal(await endWait(), 2000);
  assert.deepEqual(await answer, { name: "exp" });
  assert.equal(requests.length, 2);
});

test("call is not repeated before its wait ends", async (t) => {
  const requests = answerWith([429, TOO_MANY_REQUESTS, { "Retry-After": "5" }], [204]);
  const endWait = stopTimers(t);
  const answer = call("DELETE", "workloads/vision/exp");
  for (let turns = 0; turns < 20; turns += 1) await new Promise((next) => setImmediate(next));

  assert.equal(requests.length, 1);
  await endWait();
  assert.equal(await answer, null);
});

test("call with status 429 twice fails with the sentence of the service", async (t) => {
  const requests = answerWith([429, TOO_MANY_REQUESTS, { "Retry-After": "1" }], [429, TOO_MANY_REQUESTS, { "Retry-After": "1" }]);
  const endWait = stopTimers(t);
  const refused = assert.rejects(call("GET", "overview"), /^Error: You ask more than 30 times a second\. Wait a moment\.$/);

  await endWait();

  await refused;
  assert.equal(requests.length, 2);
});

for (const status of [400, 403, 409, 503]) {
  test(`call refused with ${status} is not repeated`, async () => {
    const requests = answerWith([status, { detail: "No." }, { "Retry-After": "1" }]);

    await assert.rejects(call("POST", "workloads"), /^Error: No\.$/);
    assert.equal(requests.length, 1);
  });
}

test("call with an unreadable reply fails as a service that is away", async () => {
  answerWith([502, undefined]);

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

test("stream is read line by line wherever its chunks end", async (t) => {
  const { send, end } = streaming(t);
  const found = lines("/live/gpus"), first = found.next();
  await new Promise((next) => setImmediate(next));
  send("data: ä");
  send("b\n\n:\n");
  end();

  assert.equal((await first).value, "data: äb");
  assert.deepEqual([(await found.next()).value, (await found.next()).value, (await found.next()).done], ["", ":", true]);
});

for (const [condition, happen] of [
  ["it is silent for three signs of life", (timers) => timers.tick(45000)],
  ["the laptop was asleep", (timers) => { timers.setTime(3600000); timers.tick(5000); }],
  ["the network is lost", () => network.dispatchEvent(new Event("offline"))],
]) {
  test(`stream breaks if ${condition}`, async (t) => {
    const { send } = streaming(t);
    const found = lines("/live/gpus"), first = found.next();
    await new Promise((next) => setImmediate(next));
    t.mock.timers.tick(44000);
    send(":\n");
    await first;
    t.mock.timers.tick(44000);
    const broken = assert.rejects(found.next(), { name: "AbortError" });
    happen(t.mock.timers);

    await broken;
  });
}

for (const [server, status, type, isFinal] of [
  ["the service", 401, "application/problem+json", true],
  ["the service", 404, "application/problem+json", true],
  ["a service that is busy", 503, "application/problem+json", false],
  ["a proxy before a service that is away", 503, "text/html", false],
  ["a hub that starts", 404, "text/html", false],
]) {
  test(`stream is ${isFinal ? "" : "not "}refused for good by ${server} with ${status}`, async (t) => {
    streaming(t, { status, headers: { "Content-Type": type } });

    await assert.rejects(lines("/live/gpus").next(), (error) => (error instanceof Refused) === isFinal);
  });
}
