// The second SDK, in each mode of version negotiation

import { Client } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';
import { done, is, play } from './check.mjs';

const ways = [
	['default', undefined, '2025-11-25'], ['legacy', 'legacy', '2025-11-25'],
	['auto', 'auto', '2026-07-28'], ['pinned', { pin: '2026-07-28' }, '2026-07-28'],
];
for (const [way, mode, expected] of ways) {
	const connect = async (name) => {
		const client = new Client({ name, version: '1' }, mode ? { versionNegotiation: { mode } } : {});
		await client.connect(new StdioClientTransport({ command: 'leaselock', args: ['mcp'], env: { ...process.env } }));
		client.call = (tool, args) => client.callTool({ name: tool, arguments: args });
		client.wait = (tool, args, options) => client.callTool({ name: tool, arguments: args }, options);
		return client;
	};
	const a = await connect(`${way} a`);
	const b = await connect(`${way} b`);
	is(a.getNegotiatedProtocolVersion(), expected, `client, ${way}: ${expected}`);
	is(a.getServerVersion().name, 'leaselock', `client, ${way}: connected`);
	is((await a.listTools()).tools.length, 5, `client, ${way}: tools`);
	await play(`client, ${way}`, a, b);
	await a.close();
	await b.close();
}
done();
