// The first SDK, which knows only the legacy era

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { done, is, ok, play, until } from './check.mjs';

const connect = async (name) => {
	const client = new Client({ name, version: '1' });
	await client.connect(new StdioClientTransport({ command: 'leaselock', args: ['mcp'], env: { ...process.env } }));
	client.call = (tool, args) => client.callTool({ name: tool, arguments: args });
	client.wait = (tool, args, options) => client.callTool({ name: tool, arguments: args }, undefined, options);
	return client;
};

const a = await connect('sdk a');
const b = await connect('sdk b');
is(a.getServerVersion().name, 'leaselock', 'sdk: connected');
ok(a.getInstructions().includes('fence_assert'), 'sdk: instructions');
is((await a.listTools()).tools.length, 5, 'sdk: tools');
await a.ping();
ok(true, 'sdk: ping');
await play('sdk', a, b);
// a wait that is longer than the client's time-out, which each progress
// message extends
const held = await a.callTool({ name: 'acquire_lock', arguments: { lock_name: 'sdk long' } });
const seen = [];
const waiting = b.callTool({ name: 'acquire_lock', arguments: { lock_name: 'sdk long', wait_seconds: 100 } }, undefined,
	{ timeout: 8000, resetTimeoutOnProgress: true, onprogress: (p) => seen.push(p) });
ok(await until(() => (seen.at(-1)?.progress ?? 0) > 8.5), 'sdk: progress');
await a.callTool({ name: 'release_lock_ticket', arguments: { ticket: held.structuredContent.ticket } });
is((await waiting).structuredContent.state, 'held', 'sdk: progress keeps a wait alive');
await a.close();
await b.close();
done();
