// node bridge.mjs COMMAND ARGUMENT...: serves a program that speaks over
// standard input and output over HTTP, as far as the conformance suite needs
// it.  Prints its address, and ends with its own input.

import http from 'node:http';
import readline from 'node:readline';
import { spawn } from 'node:child_process';

const server = spawn(process.argv[2], process.argv.slice(3), { stdio: ['pipe', 'pipe', 'inherit'] });
const waiting = new Map();
let last = 0;

readline.createInterface({ input: server.stdout }).on('line', (line) => {
	const message = JSON.parse(line);
	const request = waiting.get(message.id);
	if (request) {
		waiting.delete(message.id);
		request({ ...message, id: request.id });
	}
});

const send = (response, status, message) => {
	response.writeHead(status, { 'content-type': 'application/json' });
	response.end(message && JSON.stringify(message));
};
const local = /^(localhost|127\.0\.0\.1|\[::1\])(:\d+)?$/;

// the HTTP status for an error
const statusOf = (message, request) => {
	if (message.error?.code === -32601) return 404;
	if (message.error?.code === -32022 || (message.error?.code === -32602 && !request.params?.name)) return 400;
	return 200;
};

const bridge = http.createServer((request, response) => {
	const origin = request.headers.origin?.replace(/^https?:\/\//, '');
	if (!local.test(request.headers.host ?? '') || (origin && !local.test(origin))) return send(response, 403);
	if (request.method !== 'POST') return send(response, 405);
	let body = '';
	request.on('data', (data) => { body += data; });
	request.on('end', () => {
		let message;
		try { message = JSON.parse(body); } catch {
			return send(response, 400, { jsonrpc: '2.0', error: { code: -32700, message: 'Parse error' } });
		}
		if (message.id === undefined) {
			server.stdin.write(`${JSON.stringify(message)}\n`);
			return send(response, 202);
		}
		const id = `bridge ${last += 1}`;
		const answer = (found) => send(response, statusOf(found, message), found);
		answer.id = message.id;
		waiting.set(id, answer);
		server.stdin.write(`${JSON.stringify({ ...message, id })}\n`);
	});
});
bridge.listen(0, '127.0.0.1', () => console.log(`http://127.0.0.1:${bridge.address().port}/mcp`));
process.stdin.resume().on('end', () => { server.stdin.end(); bridge.closeAllConnections(); bridge.close(); });
