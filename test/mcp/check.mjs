// Shared by the clients: checks, reported as TAP

let count = 0;
let failed = 0;

export const ok = (passed, name, found) => {
	count += 1;
	if (!passed) failed += 1;
	console.log(`${passed ? 'ok' : 'not ok'} ${count} - ${name}`);
	if (!passed) console.log(`# found ${JSON.stringify(found)}`);
};
export const is = (found, expected, name) => ok(found === expected, name, found);
export const done = () => { console.log(`1..${count}`); process.exitCode = failed ? 1 : 0; };

// waits until something is true
export const until = async (condition) => {
	for (let i = 0; i < 1200; i += 1) {
		if (await condition()) return true;
		await new Promise((resolve) => { setTimeout(resolve, 50); });
	}
	return false;
};

// the same for every client: two agents A and B; "call" calls a tool and
// returns the answer, "wait" calls a tool with progress and a signal
export const play = async (name, a, b) => {
	const held = await a.call('acquire_lock', { lock_name: name, lease_seconds: 30, note: 'a test' });
	is(held.structuredContent.state, 'held', `${name}: held`);
	is(held.content[0].text, JSON.stringify(held.structuredContent), `${name}: the text equals the content`);
	is(held.structuredContent.owner, `mcp:${held.structuredContent.request_id}`, `${name}: the owner is derived from the request id`);
	ok(Number.isSafeInteger(held.structuredContent.fence), `${name}: the fence is exact`);
	is((await b.call('acquire_lock', { lock_name: name })).structuredContent.state, 'contended', `${name}: contended is not an error`);

	const seen = [];
	const waiting = b.wait('acquire_lock', { lock_name: name, wait_seconds: 100 }, { onprogress: (p) => seen.push(p) });
	ok(await until(() => seen.length >= 2), `${name}: a wait sends progress`);
	is(seen[0].message, `waiting for lock "${name}", position 1`, `${name}: progress tells the position`);
	ok(seen[1].progress > seen[0].progress, `${name}: progress grows`);
	is((await b.call('get_lock_ticket', { ticket: held.structuredContent.ticket })).structuredContent.state, 'held', `${name}: other calls are answered meanwhile`);
	is((await a.call('release_lock_ticket', { ticket: held.structuredContent.ticket })).structuredContent.state, 'released', `${name}: released`);
	const promoted = (await waiting).structuredContent;
	is(promoted.state, 'held', `${name}: the wait ends with the lock`);
	ok(promoted.fence > held.structuredContent.fence, `${name}: its fence is greater`);
	is((await b.call('heartbeat_lock_ticket', { ticket: promoted.ticket })).structuredContent.state, 'held', `${name}: heartbeat`);

	const given = new AbortController();
	const left = a.wait('acquire_lock', { lock_name: name, wait_seconds: 100 }, { signal: given.signal }).then(() => 'answered', () => 'cancelled');
	const waiters = async () => (await b.call('lock_status', { lock_name: name })).structuredContent.locks[0]?.waiters;
	ok(await until(async () => await waiters() === 1), `${name}: a call waits`);
	given.abort('a test');
	is(await left, 'cancelled', `${name}: the call is cancelled`);
	ok(await until(async () => await waiters() === 0), `${name}: its place in the queue is given up`);

	const refused = await a.call('acquire_lock', { lock_name: name, lease_seconds: 1000 });
	ok(refused.isError && /22023/.test(refused.content[0].text) && /5 s to 300 s/.test(refused.content[0].text), `${name}: a refused value is an error of the tool`, refused);
	const code = await a.call('take_lock', {}).then((r) => r, (e) => e.code);
	is(code, -32602, `${name}: an unknown tool is a protocol error`);
	is((await a.call('get_lock_ticket', { ticket: '00000000-0000-0000-0000-000000000000' })).structuredContent.state, 'gone', `${name}: an unknown ticket is gone`);
};

