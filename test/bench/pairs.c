/*-------------------------------------------------------------------------
 *
 * pairs.c
 *	  Locks and unlocks in Redis or etcd, one after the other, without pauses.
 *
 *		pairs redis SOCKET CLIENTS SECONDS
 *		pairs redis-next SOCKET CLIENTS SECONDS
 *		pairs etcd PORT CLIENTS SECONDS
 *
 * Like pgbench, it is one process with CLIENTS connections.  Each runs a loop
 * of a lock and its unlock, for a random name out of 1000 of its own.  Prints
 * the pairs per second.  Anything but a granted lock and a successful unlock
 * ends the program with 1.  test/bench/pairs compiles it into its work folder.
 *
 * Redis: SET NX PX, and a script that deletes the key if it has our token.
 * The service redis-next first takes one lock in this way.  Then it sends two
 * commands at once, the unlock of that lock and the lock of another; these are
 * a pair.  Redis writes and syncs commands that arrive together in one go; a
 * script that does both or neither takes as long.
 * etcd: the lock service, through the HTTP gateway of the server itself, with
 * one lease per connection.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define NAMES		1000
#define MAX_CLIENTS 256
#define SCRIPT \
	"if redis.call('get', KEYS[1]) == ARGV[1] then " \
	"return redis.call('del', KEYS[1]) else return 0 end"

/* The request whose reply a client waits for. */
typedef enum Request
{
	LOCK,
	UNLOCK,
	HAND_OVER
} Request;

typedef struct Client
{
	int			fd;
	int			id;
	Request		request;
	long		pairs;
	int			name;
	int			next_name;
	char		key[512];		/* etcd: the lease, then the key it locked */
	char		lease[64];
	char		reply[4096];
	size_t		length;
} Client;

typedef struct Service
{
	int			(*connect) (const char *address);
	void		(*prepare) (Client *client);
	void		(*lock) (Client *client);
	void		(*unlock) (Client *client);
	bool		(*is_complete) (const Client *client);
	bool		(*is_granted) (Client *client);
	bool		(*is_released) (Client *client);
	void		(*hand_over) (Client *client);	/* or NULL */
} Service;

static char script_sha[64];

static void
die(const char *what, const char *detail)
{
	fprintf(stderr, "pairs: %s: %s\n", what, detail);
	exit(1);
}

static double
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void
send_text(Client *client, const char *format,...)
{
	char		text[2048];
	va_list		args;
	int			length;

	va_start(args, format);
	length = vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if (length < 0 || (size_t) length >= sizeof(text))
		die("send", "too long");
	if (send(client->fd, text, length, MSG_NOSIGNAL) != length)
		die("send", strerror(errno));
	client->length = 0;
	client->reply[0] = '\0';
}

static void
receive(Client *client)
{
	ssize_t		got = recv(client->fd, client->reply + client->length,
						   sizeof(client->reply) - 1 - client->length, 0);

	if (got <= 0)
		die("connection lost", got < 0 ? strerror(errno) : client->reply);
	client->length += got;
	client->reply[client->length] = '\0';
}

/* ----------------------------------------------------------------------
 * Redis
 * ----------------------------------------------------------------------
 */

static int
redis_connect(const char *address)
{
	struct sockaddr_un where = {.sun_family = AF_UNIX};
	int			fd = socket(AF_UNIX, SOCK_STREAM, 0);

	if (strlen(address) >= sizeof(where.sun_path))
		die("the name of the socket is too long", address);
	strcpy(where.sun_path, address);
	if (fd < 0 || connect(fd, (struct sockaddr *) &where, sizeof(where)) < 0)
		die(address, strerror(errno));
	return fd;
}

/*
 * A reply ends with its first line, even if the lock is not granted ($-1); the
 * reply to SCRIPT LOAD alone has two lines.  A hand-over has two replies.
 */
static bool
redis_is_complete(const Client *client)
{
	const char *end = strstr(client->reply, "\r\n");

	if (end && (client->request == HAND_OVER ||
				strncmp(client->reply, "$40", 3) == 0))
		end = strstr(end + 2, "\r\n");
	return end != NULL;
}

static void
redis_prepare(Client *client)
{
	send_text(client, "*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n$%zu\r\n%s\r\n",
			  strlen(SCRIPT), SCRIPT);
	while (!redis_is_complete(client))
		receive(client);
	if (sscanf(client->reply, "$40 %40s", script_sha) != 1)
		die("SCRIPT LOAD", client->reply);
}

/* Print the commands; each pair has a token of its own. */
static void
redis_print_lock(char *command, int name, int client, long pair)
{
	char		key[32],
				token[64];

	sprintf(key, "job.%d", name);
	sprintf(token, "worker-%d-%ld", client, pair);
	sprintf(command, "*6\r\n$3\r\nSET\r\n$%zu\r\n%s\r\n$%zu\r\n%s\r\n"
			"$2\r\nNX\r\n$2\r\nPX\r\n$5\r\n60000\r\n",
			strlen(key), key, strlen(token), token);
}

static void
redis_print_unlock(char *command, int name, int client, long pair)
{
	char		key[32],
				token[64];

	sprintf(key, "job.%d", name);
	sprintf(token, "worker-%d-%ld", client, pair);
	sprintf(command, "*5\r\n$7\r\nEVALSHA\r\n$40\r\n%s\r\n$1\r\n1\r\n"
			"$%zu\r\n%s\r\n$%zu\r\n%s\r\n",
			script_sha, strlen(key), key, strlen(token), token);
}

static void
redis_lock(Client *client)
{
	char		lock[256];

	redis_print_lock(lock, client->name, client->id, client->pairs);
	send_text(client, "%s", lock);
}

static void
redis_unlock(Client *client)
{
	char		unlock[256];

	redis_print_unlock(unlock, client->name, client->id, client->pairs);
	send_text(client, "%s", unlock);
}

static void
redis_hand_over(Client *client)
{
	char		unlock[256],
				lock[256];

	redis_print_unlock(unlock, client->name, client->id, client->pairs);
	redis_print_lock(lock, client->next_name, client->id, client->pairs + 1);
	send_text(client, "%s%s", unlock, lock);
}

static bool
redis_is_granted(Client *client)
{
	return strcmp(client->reply, "+OK\r\n") == 0;
}

static bool
redis_is_released(Client *client)
{
	return strcmp(client->reply, client->request == HAND_OVER ?
				  ":1\r\n+OK\r\n" : ":1\r\n") == 0;
}

/* ----------------------------------------------------------------------
 * etcd
 * ----------------------------------------------------------------------
 */

static int
etcd_connect(const char *address)
{
	struct sockaddr_in where = {
		.sin_family = AF_INET,
		.sin_port = htons(atoi(address)),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)
	};
	int			fd = socket(AF_INET, SOCK_STREAM, 0);
	int			yes = 1;

	if (fd < 0 || connect(fd, (struct sockaddr *) &where, sizeof(where)) < 0)
		die(address, strerror(errno));
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
	return fd;
}

static void
etcd_post(Client *client, const char *path, const char *body)
{
	send_text(client, "POST /v3/%s HTTP/1.1\r\nHost: 127.0.0.1\r\n"
			  "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
			  path, strlen(body), body);
}

static bool
etcd_is_complete(const Client *client)
{
	const char *body = strstr(client->reply, "\r\n\r\n");
	const char *length = strstr(client->reply, "Content-Length: ");

	if (!body)
		return false;
	if (!length || length > body)
		die("a reply without Content-Length", client->reply);
	return client->reply + client->length >= body + 4 + atoi(length + 16);
}

/* Copies a string from the body of a reply; false if it is missing. */
static bool
etcd_string(const Client *client, const char *field, char *value, size_t size)
{
	char		start[32];
	const char *from;
	size_t		length;

	if (strncmp(client->reply, "HTTP/1.1 200 ", 13) != 0)
		return false;
	sprintf(start, "\"%s\":\"", field);
	from = strstr(client->reply, start);
	if (!from)
		return false;
	from += strlen(start);
	length = strcspn(from, "\"");
	if (length >= size)
		return false;
	memcpy(value, from, length);
	value[length] = '\0';
	return true;
}

static void
etcd_prepare(Client *client)
{
	etcd_post(client, "lease/grant", "{\"TTL\":600}");
	while (!etcd_is_complete(client))
		receive(client);
	if (!etcd_string(client, "ID", client->lease, sizeof(client->lease)))
		die("lease/grant", client->reply);
}

static void
base64(const char *text, char *to)
{
	static const char digits[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	size_t		length = strlen(text);

	for (size_t i = 0; i < length; i += 3)
	{
		unsigned	group = (unsigned char) text[i] << 16;

		if (i + 1 < length)
			group |= (unsigned char) text[i + 1] << 8;
		if (i + 2 < length)
			group |= (unsigned char) text[i + 2];
		*to++ = digits[group >> 18];
		*to++ = digits[group >> 12 & 63];
		*to++ = i + 1 < length ? digits[group >> 6 & 63] : '=';
		*to++ = i + 2 < length ? digits[group & 63] : '=';
	}
	*to = '\0';
}

static void
etcd_lock(Client *client)
{
	char		name[32],
				encoded[64],
				body[256];

	sprintf(name, "job.%d", client->name);
	base64(name, encoded);
	sprintf(body, "{\"name\":\"%s\",\"lease\":\"%s\"}", encoded, client->lease);
	etcd_post(client, "lock/lock", body);
}

static void
etcd_unlock(Client *client)
{
	char		body[sizeof(client->key) + 16];

	sprintf(body, "{\"key\":\"%s\"}", client->key);
	etcd_post(client, "lock/unlock", body);
}

static bool
etcd_is_granted(Client *client)
{
	return etcd_string(client, "key", client->key, sizeof(client->key));
}

static bool
etcd_is_released(Client *client)
{
	char		revision[32];

	return etcd_string(client, "revision", revision, sizeof(revision));
}

/* ---------------------------------------------------------------------- */

static const Service redis = {
	redis_connect, redis_prepare, redis_lock, redis_unlock,
	redis_is_complete, redis_is_granted, redis_is_released, NULL
};
static const Service redis_next = {
	redis_connect, redis_prepare, redis_lock, redis_unlock,
	redis_is_complete, redis_is_granted, redis_is_released, redis_hand_over
};
static const Service etcd = {
	etcd_connect, etcd_prepare, etcd_lock, etcd_unlock,
	etcd_is_complete, etcd_is_granted, etcd_is_released, NULL
};

static int
choose_name(const Client *client)
{
	return client->id * NAMES + 1 + rand() % NAMES;
}

static void
lock_next(const Service *service, Client *client)
{
	client->name = choose_name(client);
	client->request = LOCK;
	service->lock(client);
}

/* Releases the client's lock, and locks the next if the service can do both. */
static void
let_go(const Service *service, Client *client, bool for_next)
{
	client->request = service->hand_over && for_next ? HAND_OVER : UNLOCK;
	if (client->request == UNLOCK)
		service->unlock(client);
	else
	{
		do
			client->next_name = choose_name(client);
		while (client->next_name == client->name);
		service->hand_over(client);
	}
}

/* Handles a reply and sends the next request; false if the time is over. */
static bool
go_on(const Service *service, Client *client, double end)
{
	if (client->request == LOCK)
	{
		if (!service->is_granted(client))
			die("not granted", client->reply);
		let_go(service, client, true);
		return true;
	}
	if (!service->is_released(client))
		die("not released", client->reply);
	if (client->request == HAND_OVER)
	{
		client->pairs++;
		client->name = client->next_name;
		let_go(service, client, now() < end);
		return true;
	}
	if (service->hand_over)
		return false;			/* the last lock does not count as a pair */
	client->pairs++;
	if (now() >= end)
		return false;
	lock_next(service, client);
	return true;
}

static double
measure(const Service *service, Client *clients, int count, double seconds)
{
	struct pollfd polls[MAX_CLIENTS];
	double		start = now();
	int			busy = count;
	long		pairs = 0;

	for (int i = 0; i < count; i++)
	{
		polls[i] = (struct pollfd) {.fd = clients[i].fd,.events = POLLIN};
		lock_next(service, &clients[i]);
	}
	while (busy > 0)
	{
		if (poll(polls, count, 30000) <= 0)
			die("poll", "no reply for 30 s");
		for (int i = 0; i < count; i++)
		{
			if (!polls[i].revents)
				continue;
			receive(&clients[i]);
			if (service->is_complete(&clients[i]) &&
				!go_on(service, &clients[i], start + seconds))
			{
				polls[i].fd = -1;
				busy--;
			}
		}
	}
	for (int i = 0; i < count; i++)
		pairs += clients[i].pairs;
	return pairs / (now() - start);
}

int
main(int argc, char **argv)
{
	static Client clients[MAX_CLIENTS];
	const Service *service;
	int			count;

	if (argc != 5 || (count = atoi(argv[3])) < 1 || count > MAX_CLIENTS)
		die("usage", "pairs redis|redis-next|etcd ADDRESS CLIENTS SECONDS");
	service = strcmp(argv[1], "redis") == 0 ? &redis :
		strcmp(argv[1], "redis-next") == 0 ? &redis_next : &etcd;
	srand(getpid());
	for (int i = 0; i < count; i++)
	{
		clients[i].id = i;
		clients[i].fd = service->connect(argv[2]);
		service->prepare(&clients[i]);
	}
	printf("%.1f\n", measure(service, clients, count, atof(argv[4])));
	return 0;
}
