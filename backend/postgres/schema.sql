-- The first layout of a schema. {s} is its quoted name, {l} the name as a literal, {c} the channel
-- of its notifications as a literal. See layout.go for how layouts change.
CREATE SCHEMA IF NOT EXISTS {s};

-- The version of the layout, and the oldest version that a library must know to use it.
CREATE TABLE {s}.layout (
	one     bool PRIMARY KEY DEFAULT true CHECK (one),
	version int NOT NULL,
	oldest  int NOT NULL
);
INSERT INTO {s}.layout VALUES (true, 1, 1);

-- The position of the latest commit.
CREATE TABLE {s}.clock (
	one      bool PRIMARY KEY DEFAULT true CHECK (one),
	zxid     bigint NOT NULL,     -- epoch in the upper bits, above 40
	identity text NOT NULL,       -- of the server when the epoch began
	home     oid NOT NULL,        -- the oid of this table: a restored copy has another
	polled   bool NOT NULL,       -- a session polls, so commits store their events
	secret   text NOT NULL        -- seals notifications, since every role that can connect can send some
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- The epochs. A later epoch begins when the server may have lost commits. After a restore, two servers can have
-- epochs of the same number. The column history tells them apart.
CREATE TABLE {s}.epoch (
	epoch   bigint PRIMARY KEY,
	base    bigint NOT NULL,      -- the last position before this epoch
	history uuid NOT NULL
);

CREATE TABLE {s}.session (
	id      bigint PRIMARY KEY,
	epoch   int NOT NULL,         -- of its connection
	home    oid NOT NULL,         -- the oid of the table clock when the connection began
	timeout interval NOT NULL,
	margin  interval NOT NULL,    -- its client declares it lost so long before the timeout
	expires timestamptz NOT NULL,
	ended   bool NOT NULL,        -- it has ended, and the transaction of a user still locks one of its nodes
	polls   bool NOT NULL         -- it asks for events and does not listen
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- The latest reap, which ended expired sessions.
CREATE TABLE {s}.reaper (
	one       bool PRIMARY KEY DEFAULT true CHECK (one),
	at        timestamptz NOT NULL,
	started   timestamptz NOT NULL, -- when the server started
	collected timestamptz NOT NULL, -- when empty containers were last deleted
	trimmed   bigint NOT NULL       -- stored events up to this position were deleted
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE TABLE {s}.node (
	path      text COLLATE "C" PRIMARY KEY,
	parent    text COLLATE "C",
	data      bytea,
	czxid     bigint NOT NULL,
	mzxid     bigint NOT NULL,
	pzxid     bigint NOT NULL,
	ctime     bigint NOT NULL,    -- in milliseconds since 1970
	mtime     bigint NOT NULL,
	version   int NOT NULL,
	owner     bigint NOT NULL,    -- 0: not ephemeral
	container bool NOT NULL,
	children  int NOT NULL,
	created   bigint NOT NULL,    -- how many children it has ever had
	changed   bigint NOT NULL     -- when a child was last created or deleted, like ctime
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000);
CREATE INDEX node_parent ON {s}.node (parent);
CREATE INDEX node_owner ON {s}.node (owner) WHERE owner <> 0;
-- No index mentions children or changed: the update of a parent stays within its page.
CREATE INDEX node_container ON {s}.node (path) WHERE container;

-- The events of the latest commits, for sessions that do not listen.
CREATE TABLE {s}.change (
	zxid   bigint PRIMARY KEY,
	events text[] NOT NULL
);

-- The commits that transactions of users carry; see stage. No row is ever committed.
CREATE TABLE {s}.staged (
	id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	kinds    int[] NOT NULL,
	paths    text[] NOT NULL,
	dirs     text[] NOT NULL,
	datas    bytea[] NOT NULL,
	modes    int[] NOT NULL,
	versions int[] NOT NULL,
	parts    text[] NOT NULL      -- JSON of the client, for the error of a refusal
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- identity changes whenever the server may have lost commits: another cluster has another identifier, a promoted
-- standby another timeline, a server whose files were restored has been started again, and recovery after a crash, for
-- which the postmaster can live on, resets the statistics.
CREATE FUNCTION {s}.identity() RETURNS text LANGUAGE sql AS
$$ SELECT concat_ws('/', (SELECT system_identifier FROM pg_control_system()), substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8),
	(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint, (SELECT (extract(epoch FROM stats_reset) * 1000000)::bigint FROM pg_stat_bgwriter)) $$;

INSERT INTO {s}.clock VALUES (true, 0, {s}.identity(), 0, false, gen_random_uuid());
UPDATE {s}.clock SET home = tableoid;
INSERT INTO {s}.epoch VALUES (0, 0, gen_random_uuid());
INSERT INTO {s}.reaper VALUES (true, clock_timestamp(), pg_postmaster_start_time(), clock_timestamp(), 0);
INSERT INTO {s}.node VALUES ('/', NULL, NULL, 0, 0, 0, 0, 0, 0, 0, false, 0, 0, 0);

CREATE FUNCTION {s}.now() RETURNS bigint LANGUAGE sql AS
$$ SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint $$;

-- take_turn orders the commits: each begins when its predecessor has ended. A transaction that has the turn waits for
-- no lock, except the row of a session, which other transactions lock only for a moment.
CREATE FUNCTION {s}.take_turn() RETURNS bool LANGUAGE sql AS
$$ SELECT pg_advisory_xact_lock(hashtextextended({l}, 7401)) IS NULL $$;

-- tell sends the events of a commit, at least one, to the sessions that listen, and stores them if a session polls.
-- The event of a session's end precedes those of its nodes. polled and secret are columns of clock. A notification has
-- less than 8000 bytes, so a commit can have several parts; '.' marks the last. PostgreSQL would merge equal parts, so
-- each has a number. The seal in front proves that the sender knows the secret.
CREATE FUNCTION {s}.tell(polled bool, secret text, z bigint, events text[]) RETURNS bool LANGUAGE plpgsql AS $$
DECLARE
	n int := cardinality(events);
	body text := '';
	part int := 0;
	sent bool;
BEGIN
	IF polled THEN
		INSERT INTO {s}.change VALUES (z, events);
	END IF;
	FOR i IN 1..n LOOP
		body := body || E'\n' || events[i];
		IF i = n OR octet_length(body) + octet_length(events[i + 1]) > 7800 THEN
			body := z || ' ' || part || CASE WHEN i = n THEN '.' ELSE '+' END || body;
			sent := pg_notify({c}, left(encode(sha256(convert_to(secret || body || secret, 'UTF8')), 'hex'), 32) || ' ' || body) IS NULL;
			part := part + 1;
			body := '';
		END IF;
	END LOOP;
	RETURN sent;
END $$;

-- name_of returns the path of a new node. n is the number of children that its parent has ever had.
CREATE FUNCTION {s}.name_of(path text, mode int, n bigint) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT CASE WHEN mode NOT IN (2, 3) THEN path WHEN n < 10000000000 THEN path || lpad(n::text, 10, '0') ELSE path || n::text END $$;

-- apply applies the operations from first to last. It returns a status, and the index of the operation that is
-- refused. The caller undoes the others then: those before it are applied, and some behind it can be. The status is
-- busy if the transaction of a user locks a row.
--
-- One statement applies successive operations of one kind and one parent. If it cannot apply all of them, they are
-- applied one by one.
CREATE FUNCTION {s}.apply(sid bigint, z bigint, first int, last int, kinds int[], paths text[], dirs text[], datas bytea[], modes int[], versions int[],
	OUT status text, OUT at int, OUT names text[], OUT siblings int[], OUT stats bigint[], OUT events text[])
LANGUAGE plpgsql AS $$
DECLARE
	i int := first;
	j int;                 -- the operations from i to j are applied together
	single int;            -- the operations before this one are applied one by one
	k int;
	p text;
	d text;
	now bigint := {s}.now();
	num bigint;
	x {s}.node;
	dir {s}.node;          -- the parent in use, as it will be
	held bool;             -- it is locked
	due bool;              -- its row is still to be written, once for all its children: each version slows down later reads
	several bool;          -- it is not the first parent in use
	made text[];
	rows tid[];
BEGIN
	events := '{}';
	WHILE i <= last LOOP
		k := kinds[i];
		p := paths[i];
		d := dirs[i];
		at := i - first;
		IF due AND (k IN (1, 3) AND d <> dir.path OR k = 2 AND p = dir.path) THEN
			UPDATE {s}.node SET children = dir.children, created = dir.created, pzxid = z, changed = now WHERE path = dir.path;
			due := false;
		END IF;
		IF k IN (1, 3) AND d IS DISTINCT FROM dir.path THEN
			several := several IS NOT NULL;
			SELECT * INTO dir FROM {s}.node WHERE path = d FOR NO KEY UPDATE SKIP LOCKED;
			held := FOUND;
			IF NOT held THEN
				SELECT * INTO dir FROM {s}.node WHERE path = d;
			END IF;
		END IF;
		j := i;
		IF i + 3 <= last AND kinds[i+3] = k AND (i < single) IS NOT TRUE AND (k = 1 OR k IN (3, 4) AND versions[i] < 0) THEN -- probably four or more
			WHILE j < last AND kinds[j+1] = k AND (k = 1 OR versions[j+1] < 0) AND (k = 4 OR dirs[j+1] = d) LOOP
				j := j + 1;
			END LOOP;
		END IF;
		IF k = 1 THEN -- create
			IF held AND dir.owner = 0 THEN
				IF j = i THEN
					p := {s}.name_of(p, modes[i], dir.created);
					INSERT INTO {s}.node VALUES (p, d, datas[i], z, z, z, now, now, 0, CASE WHEN modes[i] IN (1, 3) THEN sid ELSE 0 END, modes[i] = 4, 0, 0, now)
						ON CONFLICT DO NOTHING;
					IF NOT FOUND THEN
						status := 'exists';
						RETURN;
					END IF;
					names[at+1] := p;
					events := events || ('c' || p);
				ELSE
					WITH n AS (INSERT INTO {s}.node
							SELECT {s}.name_of(q.path, q.mode, dir.created + q.i - 1), d, q.data, z, z, z, now, now, 0, CASE WHEN q.mode IN (1, 3) THEN sid ELSE 0 END, q.mode = 4, 0, 0, now
							FROM unnest(paths[i:j], datas[i:j], modes[i:j]) WITH ORDINALITY AS q(path, data, mode, i)
							ON CONFLICT DO NOTHING RETURNING path)
						SELECT array_agg(path) INTO made FROM n;
					IF cardinality(made) IS DISTINCT FROM j - i + 1 THEN -- the first that is missing exists
						FOR n IN i..j LOOP
							at := n - first;
							EXIT WHEN made[n-i+1] IS DISTINCT FROM {s}.name_of(paths[n], modes[n], dir.created + n - i);
						END LOOP;
						status := 'exists';
						RETURN;
					END IF;
					names[at+1:at+j-i+1] := made;
					events := events || string_to_array('c' || array_to_string(made, E'\nc'), E'\n'); -- no path has a line break
				END IF;
			ELSE
				p := {s}.name_of(p, modes[i], dir.created);
				status := CASE WHEN dir.path IS NULL THEN 'notfound' WHEN dir.owner <> 0 THEN 'nochildren'
					WHEN EXISTS (SELECT FROM {s}.node WHERE path = p) THEN 'exists' ELSE 'busy' END;
				RETURN;
			END IF;
			dir.children := dir.children + j - i + 1;
			dir.created := dir.created + j - i + 1;
			due := true;
		ELSIF k = 3 THEN -- delete
			IF held AND j > i THEN
				rows := ARRAY(SELECT ctid FROM {s}.node WHERE path = ANY (paths[i:j]) AND children = 0 FOR UPDATE SKIP LOCKED);
				IF cardinality(rows) = j - i + 1 THEN
					DELETE FROM {s}.node WHERE ctid = ANY (rows);
					events := events || string_to_array('d' || array_to_string(paths[i:j], E'\nd'), E'\n');
				ELSE
					single := j + 1;
					CONTINUE;
				END IF;
			ELSE
				j := i;
				IF held THEN
					DELETE FROM {s}.node WHERE ctid = (SELECT ctid FROM {s}.node
						WHERE path = p AND children = 0 AND (versions[i] < 0 OR versions[i] = version) FOR UPDATE SKIP LOCKED);
				END IF;
				IF held IS NOT TRUE OR NOT FOUND THEN
					SELECT * INTO x FROM {s}.node WHERE path = p;
					status := CASE WHEN NOT FOUND THEN 'notfound' WHEN versions[i] >= 0 AND versions[i] <> x.version THEN 'badversion'
						WHEN x.children > 0 THEN 'notempty' ELSE 'busy' END;
					RETURN;
				END IF;
				events := events || ('d' || p);
			END IF;
			dir.children := dir.children - (j - i + 1);
			due := true;
		ELSIF k = 4 THEN -- check
			IF j > i THEN
				SELECT count(*) INTO num FROM {s}.node WHERE path = ANY (paths[i:j]);
				IF num < j - i + 1 THEN
					single := j + 1;
					CONTINUE;
				END IF;
			ELSE
				SELECT version INTO num FROM {s}.node WHERE path = p;
				status := CASE WHEN NOT FOUND THEN 'notfound' WHEN versions[i] >= 0 AND versions[i] <> num THEN 'badversion' END;
				IF status IS NOT NULL THEN
					RETURN;
				END IF;
			END IF;
		ELSIF k = 5 THEN -- absent
			SELECT owner INTO num FROM {s}.node WHERE path = d;
			status := CASE WHEN NOT FOUND THEN 'notfound' WHEN EXISTS (SELECT FROM {s}.node WHERE path = p) THEN 'exists' WHEN num <> 0 THEN 'nochildren' END;
			IF status IS NOT NULL THEN
				RETURN;
			END IF;
		ELSE -- set, carry
			IF k = 2 THEN
				UPDATE {s}.node SET data = datas[i], version = version + 1, mzxid = z, mtime = now
					WHERE ctid = (SELECT ctid FROM {s}.node WHERE path = p AND (versions[i] < 0 OR versions[i] = version) FOR NO KEY UPDATE SKIP LOCKED) RETURNING * INTO x;
				IF NOT FOUND THEN
					SELECT version INTO num FROM {s}.node WHERE path = p;
					status := CASE WHEN NOT FOUND THEN 'notfound' WHEN versions[i] >= 0 AND versions[i] <> num THEN 'badversion' ELSE 'busy' END;
					RETURN;
				END IF;
				events := events || ('s' || p);
				IF p = dir.path THEN
					dir := x;
				END IF;
			ELSE
				IF p = dir.path THEN
					x := dir;
					IF due THEN
						x.pzxid := z;
					END IF;
				ELSE
					SELECT * INTO x FROM {s}.node WHERE path = p;
				END IF;
				status := CASE WHEN x.path IS NULL THEN 'notfound'
					WHEN versions[i] >= 0 AND versions[i] <> x.version OR coalesce(x.data, '') <> coalesce(datas[i], '') THEN 'badversion' END;
				IF status IS NOT NULL THEN
					RETURN;
				END IF;
			END IF;
			stats[11*at+1:11*at+11] := ARRAY[x.czxid, x.mzxid, x.pzxid, x.ctime, x.mtime, x.version,
				2*x.created - x.children, x.owner, coalesce(octet_length(x.data), 0), x.children, x.container::int];
		END IF;
		i := j + 1;
	END LOOP;
	status := 'ok';
	at := -1;
	IF due THEN
		UPDATE {s}.node SET children = dir.children, created = dir.created, pzxid = z, changed = now WHERE path = dir.path;
	END IF;
	-- The result has the siblings after the whole commit.
	IF names IS NOT NULL AND NOT several THEN
		siblings := array_fill(dir.children, ARRAY[last-first+1]);
	ELSIF names IS NOT NULL THEN
		FOR i IN first..last LOOP
			IF kinds[i] = 1 THEN
				IF dirs[i] IS DISTINCT FROM dir.path THEN
					SELECT * INTO dir FROM {s}.node WHERE path = dirs[i];
				END IF;
				siblings[i-first+1] := dir.children;
			END IF;
		END LOOP;
	END IF;
END $$;

-- commit makes several commits of a session. sizes has the number of operations of each, which are applied all or
-- none. Refusals are statuses, not errors, so that the commits can share a transaction. With early, the turn ends
-- before the transaction is durable, and the caller waits for that by another transaction.
CREATE FUNCTION {s}.commit(sid bigint, ep int, early bool, sizes int[], kinds int[], paths text[], dirs text[], datas bytea[], modes int[], versions int[],
	OUT status text, OUT at int, OUT z bigint, OUT names text[], OUT siblings int[], OUT stats bigint[])
RETURNS SETOF record LANGUAGE plpgsql AS $$
DECLARE
	done bool;
	before bigint;
	latest bigint;
	polled bool;
	secret text;
	same bool;
	refused text;
	n int;
	first int := 1;
	r record;
BEGIN
	IF early THEN
		PERFORM set_config('synchronous_commit', 'off', true);
	END IF;
	done := {s}.take_turn();
	SELECT c.zxid, c.polled, c.secret, s.home = c.tableoid INTO before, polled, secret, same
		FROM {s}.clock c JOIN {s}.session s ON s.id = sid AND s.epoch = ep AND NOT s.ended;
	refused := CASE WHEN NOT FOUND THEN 'lost' WHEN NOT same THEN 'moved' END;
	latest := before;
	FOREACH n IN ARRAY sizes LOOP
		IF refused IS NOT NULL THEN
			status := refused;
			RETURN NEXT;
			CONTINUE;
		END IF;
		z := latest + 1;
		IF n = 1 THEN -- nothing to undo
			r := {s}.apply(sid, z, first, first, kinds, paths, dirs, datas, modes, versions);
		ELSE
			BEGIN
				r := {s}.apply(sid, z, first, first + n - 1, kinds, paths, dirs, datas, modes, versions);
				IF r.status <> 'ok' THEN
					RAISE SQLSTATE 'CO001';
				END IF;
			EXCEPTION WHEN SQLSTATE 'CO001' THEN -- undoes the operations before
			END;
		END IF;
		first := first + n;
		status := r.status;
		at := r.at;
		names := r.names;
		siblings := r.siblings;
		stats := r.stats;
		IF status = 'ok' AND cardinality(r.events) > 0 THEN
			done := {s}.tell(polled, secret, z, r.events);
			latest := z;
		ELSE
			z := latest; -- nothing has changed
		END IF;
		RETURN NEXT;
	END LOOP;
	IF latest > before THEN
		UPDATE {s}.clock SET zxid = latest;
	END IF;
END $$;

-- finish ends a session: its later commits are refused, and one commit deletes its nodes. It returns false if the
-- transaction of a user locks one of them or a parent; a later call deletes them.
CREATE FUNCTION {s}.finish(sid bigint) RETURNS bool LANGUAGE plpgsql AS $$
DECLARE
	c {s}.clock;
	z bigint;
	gone text[];
	locked bigint;
BEGIN
	PERFORM {s}.take_turn();
	UPDATE {s}.session SET ended = true, expires = clock_timestamp() WHERE id = sid; -- reap orders by this time
	IF NOT FOUND THEN
		RETURN true;
	END IF;
	SELECT count(*) INTO locked FROM (SELECT FROM {s}.node WHERE owner = sid AND owner <> 0 FOR UPDATE SKIP LOCKED) l;
	IF locked < (SELECT count(*) FROM {s}.node WHERE owner = sid AND owner <> 0) THEN
		RETURN false;
	END IF;
	SELECT count(*) INTO locked FROM (SELECT FROM {s}.node WHERE path IN (SELECT parent FROM {s}.node WHERE owner = sid AND owner <> 0) FOR NO KEY UPDATE SKIP LOCKED) l;
	IF locked < (SELECT count(DISTINCT parent) FROM {s}.node WHERE owner = sid AND owner <> 0) THEN
		RETURN false;
	END IF;
	SELECT * INTO c FROM {s}.clock;
	z := c.zxid + 1;
	DELETE FROM {s}.session WHERE id = sid;
	WITH d AS (DELETE FROM {s}.node WHERE owner = sid AND owner <> 0 RETURNING path, parent),
		g AS (SELECT parent, count(*) AS n FROM d GROUP BY parent),
		u AS (UPDATE {s}.node SET children = children - g.n, pzxid = z, changed = {s}.now() FROM g WHERE path = g.parent)
	SELECT array_agg('d' || path ORDER BY path) INTO gone FROM d;
	UPDATE {s}.clock SET zxid = z;
	PERFORM {s}.tell(c.polled, c.secret, z, ('x' || sid) || coalesce(gone, '{}'));
	-- After tell, so that the last session that polls finds the event of its end.
	UPDATE {s}.clock SET polled = false WHERE polled AND NOT EXISTS (SELECT FROM {s}.session WHERE polls);
	RETURN true;
END $$;

-- see_history begins a new epoch if this server may lack commits that were made: it is another server or was started
-- again, the tables are a restored copy, or a session has seen a position that was never reached here. Every
-- connection of a session begins with open or attach, which call it. If the tables are replaced under a connection,
-- the next commit or keep-alive on it finds another home. Otherwise a connection continues in the new epoch.
CREATE FUNCTION {s}.see_history(seen bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	here text := {s}.identity();
	z bigint;
	next bigint;
BEGIN
	SELECT zxid, (greatest(zxid, seen) >> 40) + 1 INTO z, next FROM {s}.clock WHERE identity <> here OR home <> tableoid OR zxid < seen;
	IF FOUND THEN
		INSERT INTO {s}.epoch VALUES (next, z, gen_random_uuid());
		UPDATE {s}.clock SET zxid = next << 40, identity = here, home = tableoid;
		-- A read waits for the events up to the position that it shows, so each position has a notification.
		PERFORM {s}.tell(polled, secret, zxid, ARRAY['e']) FROM {s}.clock;
	END IF;
END $$;

-- same_history fails unless the history is the known one; null means any. A pool can send a session to another server,
-- or to this one after a restart, without ending its connection, so each transaction of a session that polls calls it
-- first.
CREATE FUNCTION {s}.same_history(known uuid) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF known IS NOT NULL AND NOT EXISTS (SELECT FROM {s}.clock c JOIN {s}.epoch e ON e.epoch = c.zxid >> 40
		WHERE e.history = known AND c.home = c.tableoid AND c.identity = {s}.identity()) THEN
		RAISE EXCEPTION USING ERRCODE = 'CO005', MESSAGE = 'the server was replaced, started again or restored: the session must attach again';
	END IF;
END $$;

CREATE FUNCTION {s}.open(sid bigint, millis int, margin int, polls bool, OUT z bigint, OUT history uuid, OUT secret text) LANGUAGE plpgsql AS $$
DECLARE
	home oid;
BEGIN
	PERFORM {s}.take_turn();
	PERFORM {s}.see_history(0);
	UPDATE {s}.clock SET polled = true WHERE open.polls AND NOT polled;
	SELECT c.zxid, e.history, c.secret, c.home INTO z, open.history, open.secret, home FROM {s}.clock c JOIN {s}.epoch e ON e.epoch = c.zxid >> 40;
	INSERT INTO {s}.session VALUES (sid, 1, home, millis * interval '1 ms', margin * interval '1 ms', clock_timestamp() + millis * interval '1 ms', false, open.polls);
END $$;

-- attach begins the epoch ep of a session's connections: commits of earlier connections are refused from now on. It
-- returns no position if the session is over. A session that has seen commits which this server lacks is over, since
-- its holds and releases may be among them. seen is the highest position that it has seen, known the history in which
-- it did.
CREATE FUNCTION {s}.attach(sid bigint, ep int, seen bigint, known uuid, OUT z bigint, OUT history uuid, OUT secret text) LANGUAGE plpgsql AS $$
DECLARE
	since bigint;
BEGIN
	PERFORM {s}.take_turn();
	PERFORM {s}.see_history(seen);
	SELECT e.epoch INTO since FROM {s}.epoch e WHERE e.history = known;
	IF NOT FOUND OR seen > (SELECT base FROM {s}.epoch WHERE epoch > since ORDER BY epoch LIMIT 1) THEN
		PERFORM {s}.finish(sid);
		RETURN;
	END IF;
	UPDATE {s}.session s SET epoch = ep, home = c.home, expires = clock_timestamp() + timeout
		FROM {s}.clock c JOIN {s}.epoch e ON e.epoch = c.zxid >> 40
		WHERE id = sid AND NOT ended AND s.epoch < ep RETURNING c.zxid, e.history, c.secret INTO z, attach.history, attach.secret;
END $$;

-- beat renews a session. It returns whether the session lives, and the history, which is null if the session must
-- attach again. A renewal need not be durable: after a crash the timeouts of all sessions begin again. But it must
-- reach a synchronous standby: otherwise a former primary that does not know of the promotion would renew sessions
-- that the new primary ends.
CREATE FUNCTION {s}.beat(sid bigint, OUT alive bool, OUT history uuid) LANGUAGE plpgsql AS $$
BEGIN
	IF current_setting('synchronous_standby_names') = '' THEN
		PERFORM set_config('synchronous_commit', 'off', true);
	END IF;
	UPDATE {s}.session s SET expires = clock_timestamp() + timeout FROM {s}.clock c
		WHERE s.id = sid AND NOT s.ended
		RETURNING (SELECT e.history FROM {s}.epoch e WHERE e.epoch = c.zxid >> 40 AND s.home = c.tableoid) INTO history;
	alive := FOUND;
END $$;

-- reap ends the sessions that have expired, and from time to time deletes empty containers; collect is how long these
-- stay. It returns after how many milliseconds the next call is due. The clock of the database can be set, and the
-- server can be down, so the time since the latest call counts against a session for 0.9 of its margin at most: a step
-- of the clock ends no living session, and a dead session ends even if calls are rare. If the server has started
-- again, or the clock went back, the timeouts of all sessions begin again.
CREATE FUNCTION {s}.reap(collect bigint) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
	now timestamptz := clock_timestamp();
	last {s}.reaper;
	due int;
	id bigint;
	quiet bool := true;
BEGIN
	SELECT least(coalesce(extract(epoch FROM min(margin)) * 225, 10000), 10000) INTO due FROM {s}.session;
	SELECT * INTO last FROM {s}.reaper;
	IF now >= last.at AND now < last.at + due * interval '0.25 ms' OR NOT pg_try_advisory_xact_lock(hashtextextended({l}, 7402)) THEN
		RETURN due;
	END IF;
	SELECT * INTO last FROM {s}.reaper;
	now := clock_timestamp();
	UPDATE {s}.reaper SET at = now, started = pg_postmaster_start_time();
	IF last.started <> pg_postmaster_start_time() OR now < last.at THEN
		PERFORM {s}.take_turn();
		UPDATE {s}.session SET expires = now + timeout WHERE NOT ended;
		RETURN due;
	END IF;
	IF EXISTS (SELECT FROM {s}.session WHERE ended OR expires < now OR margin * 0.9 < now - last.at) THEN
		PERFORM {s}.take_turn(); -- before the rows of sessions, as in attach, or the two could deadlock
		UPDATE {s}.session SET expires = least(expires + (now - last.at - margin * 0.9), now + timeout)
			WHERE NOT ended AND margin * 0.9 < now - last.at;
		FOR id IN SELECT s.id FROM {s}.session s WHERE s.ended OR s.expires < now ORDER BY s.ended, s.expires LIMIT 50 FOR UPDATE SKIP LOCKED LOOP
			PERFORM {s}.finish(id);
			quiet := false;
		END LOOP;
	END IF;
	IF collect > 0 AND now > last.collected + least(collect, 10000) * interval '1 ms' THEN
		UPDATE {s}.reaper SET collected = now;
		quiet := quiet AND {s}.collect(collect) = 0;
	END IF;
	IF last.trimmed < (SELECT zxid FROM {s}.clock) - 20000 THEN -- a session that has not read them yet compares trimmed
		UPDATE {s}.reaper SET trimmed = (SELECT zxid FROM {s}.clock) - 10000 RETURNING trimmed INTO last.trimmed;
		DELETE FROM {s}.change WHERE zxid <= last.trimmed;
	END IF;
	IF quiet THEN
		PERFORM set_config('synchronous_commit', 'off', true); -- no session depends on these writes
	END IF;
	RETURN due;
END $$;

-- collect deletes the containers that have been empty for idle milliseconds, each by its own commit, and returns their
-- number.
CREATE FUNCTION {s}.collect(idle bigint) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
	n int := 0;
	p text;
	d text;
BEGIN
	FOR p IN SELECT path FROM {s}.node WHERE container AND children = 0 AND changed < {s}.now() - idle ORDER BY path DESC LIMIT 100 LOOP
		PERFORM {s}.take_turn();
		SELECT parent INTO d FROM {s}.node WHERE path = p AND children = 0 AND changed < {s}.now() - idle FOR UPDATE SKIP LOCKED;
		CONTINUE WHEN NOT FOUND;
		UPDATE {s}.node SET children = children - 1, pzxid = (SELECT zxid + 1 FROM {s}.clock), changed = {s}.now()
			WHERE ctid = (SELECT ctid FROM {s}.node WHERE path = d FOR NO KEY UPDATE SKIP LOCKED);
		CONTINUE WHEN NOT FOUND;
		DELETE FROM {s}.node WHERE path = p;
		UPDATE {s}.clock SET zxid = zxid + 1;
		PERFORM {s}.tell(polled, secret, zxid, ARRAY['d' || p]) FROM {s}.clock;
		n := n + 1;
	END LOOP;
	RETURN n;
END $$;

-- guard makes the transaction of its caller depend on nodes: it fails unless each exists, has its version if that is
-- not negative, and belongs to no session that has ended. Until the transaction ends, none of them is deleted, and no
-- version that was compared changes. idle is CheckOptions.Idle in milliseconds.
--
-- The lock comes before the comparison, so the result stays true. KEY SHARE conflicts with the deletion only. Sessions
-- are not locked, since finish waits for their rows. REPEATABLE READ reads a session as of the snapshot, so expires
-- cannot be compared. A session that has ended since does no harm, because its node stays.
--
-- The function runs with the rights of the owner, so all names are qualified, and pg_temp is named last: otherwise it
-- would be searched first.
CREATE FUNCTION {s}.guard(paths text[], versions int[], idle int) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	own bigint;
	ver int;
	lease interval;
	shortest interval;
	code text;
	present interval := current_setting('idle_in_transaction_session_timeout')::interval;
BEGIN
	FOR i IN 1..cardinality(paths) LOOP
		IF versions[i] < 0 THEN
			SELECT owner, version INTO own, ver FROM {s}.node WHERE path = paths[i] FOR KEY SHARE;
		ELSE
			SELECT owner, version INTO own, ver FROM {s}.node WHERE path = paths[i] FOR SHARE;
		END IF;
		IF NOT FOUND THEN
			code := 'CO010';
		ELSIF versions[i] >= 0 AND versions[i] <> ver THEN
			code := 'CO012';
		ELSIF own <> 0 THEN
			SELECT timeout INTO lease FROM {s}.session WHERE id = own AND NOT ended;
			IF NOT FOUND THEN
				code := 'CO011';
			END IF;
			shortest := least(shortest, lease);
		END IF;
		IF code IS NOT NULL THEN -- an error, so that a caller that ignores it cannot commit
			RAISE EXCEPTION USING ERRCODE = code, DETAIL = paths[i], MESSAGE = CASE code WHEN 'CO010' THEN 'the node of the guard does not exist'
				WHEN 'CO011' THEN 'the session of the guard has ended' ELSE 'the node of the guard has another version' END;
		END IF;
	END LOOP;
	IF idle = 0 THEN
		idle := extract(epoch FROM coalesce(shortest, interval '10 s')) * 1000;
	END IF;
	IF idle > 0 AND (present = interval '0' OR present > idle * interval '1 ms') THEN
		PERFORM set_config('idle_in_transaction_session_timeout', idle::text, true);
	END IF;
END $$;

-- stage makes the transaction of a user carry a commit of the session: its COMMIT applies the operations, or fails.
-- stage takes no lock that another transaction waits for. The user needs USAGE of the schema, and nothing else.
CREATE FUNCTION {s}.stage(sid bigint, ep int, kinds int[], paths text[], dirs text[], datas bytea[], modes int[], versions int[], parts text[])
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
	staged_id bigint;
BEGIN
	-- apply must see the state after it has the turn, and not the snapshot of the transaction.
	IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
		RAISE EXCEPTION USING ERRCODE = 'CO003', MESSAGE = 'the isolation level of the transaction is ' || current_setting('transaction_isolation') || ', only read committed can carry a commit';
	END IF;
	IF current_setting('session_replication_role') = 'replica' THEN -- no trigger would apply the commit
		RAISE EXCEPTION USING ERRCODE = 'CO003', MESSAGE = 'the setting session_replication_role is replica, a transaction can carry a commit only as origin';
	END IF;
	-- A lower epoch than the client knows shows another server, such as a former primary.
	IF NOT EXISTS (SELECT FROM {s}.session s WHERE s.id = sid AND s.epoch >= ep AND NOT s.ended) THEN
		RAISE EXCEPTION USING ERRCODE = 'CO004', MESSAGE = 'the session of the client is not in this database and schema, or has ended';
	END IF;
	INSERT INTO {s}.staged (kinds, paths, dirs, datas, modes, versions, parts)
		VALUES (kinds, paths, dirs, datas, modes, versions, parts) RETURNING id INTO staged_id;
	IF NOT EXISTS (SELECT FROM {s}.staged s WHERE s.id = staged_id) THEN -- it was applied at once, and the transaction has the turn already
		RAISE EXCEPTION USING ERRCODE = 'CO003', MESSAGE = 'the constraints of the transaction are immediate, only deferred ones can carry a commit';
	END IF;
END $$;

-- COMMIT runs the deferred triggers in the order of the statements that caused them. The triggers of the user's tables
-- can wait for locks of other transactions, and a transaction that has the turn must not wait. So the first trigger of
-- a staged row only causes the second, which runs after them and takes the turn.
CREATE FUNCTION {s}.unstage() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
	DELETE FROM {s}.staged WHERE id = NEW.id;
	RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER unstage AFTER INSERT ON {s}.staged DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW EXECUTE FUNCTION {s}.unstage();

-- carry applies a staged commit, or refuses it with an error, which rolls the transaction back. The detail of the
-- error names the refused operation.
CREATE FUNCTION {s}.carry() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
	c {s}.clock;
	r record;
BEGIN
	PERFORM {s}.take_turn();
	PERFORM {s}.see_history(0); -- no session may have connected to this server yet
	SELECT * INTO c FROM {s}.clock;
	r := {s}.apply(0, c.zxid + 1, 1, cardinality(OLD.kinds), OLD.kinds, OLD.paths, OLD.dirs, OLD.datas, OLD.modes, OLD.versions);
	IF r.status <> 'ok' THEN
		RAISE EXCEPTION USING ERRCODE = 'CO002', MESSAGE = format('coord refuses the transaction: %s: %s', OLD.paths[r.at + 1], r.status),
			DETAIL = json_build_object('status', r.status, 'index', r.at, 'kind', OLD.kinds[r.at + 1], 'path', OLD.paths[r.at + 1], 'part', OLD.parts[r.at + 1]::json);
	END IF;
	IF cardinality(r.events) = 0 THEN
		PERFORM pg_notify({c}, ''); -- so that PREPARE TRANSACTION fails, which would keep the turn
	ELSE
		UPDATE {s}.clock SET zxid = c.zxid + 1;
		PERFORM {s}.tell(c.polled, c.secret, c.zxid + 1, r.events);
	END IF;
	RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER carry AFTER DELETE ON {s}.staged DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW EXECUTE FUNCTION {s}.carry();

-- USAGE of the schema shall be enough, even if default privileges keep functions from PUBLIC.
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {s} TO PUBLIC;
