package postgres

import (
	"strconv"
	"strings"
	"time"
)

// Columns of a node, in the order of stat; see there.
const columns = "n.czxid, n.mzxid, n.pzxid, n.ctime, n.mtime, n.version, 2*n.created - n.children, n.owner, octet_length(n.data), n.children, n.container::int"

// names is the array of the names of the children of a path.
const names = "ARRAY(SELECT substr(m.path, length(m.parent) + CASE WHEN m.parent = '/' THEN 1 ELSE 2 END) FROM {s}.node m WHERE m.parent = n.asked)"

// mostReply bounds the reply to one request of ReadMany, since keep-alives wait behind it. The first read of a
// request is always answered.
const mostReply = "2000000"

// statements are the statements of a session. The first column of a read is the position of its snapshot. A read is one
// statement, so all its rows have that snapshot. The names of reads begin with r_, of commits with c_, and of requests of the
// session itself with k_.
var statements = map[string]string{
	"k_open":   "SELECT * FROM {s}.open($1::bigint, $2::int, $3::int, $4::bool)",
	"k_attach": "SELECT * FROM {s}.attach($1::bigint, $2::int, $3::bigint, $4::uuid)",
	"k_beat":   "SELECT * FROM {s}.beat($1::bigint)",
	"k_reap":   "SELECT {s}.reap($1::bigint)",
	"k_finish": "SELECT {s}.finish($1::bigint)",

	// The events after a position, for sessions that poll. The first two columns are the position up to which the reply is
	// complete, and the position up to which the events were deleted.
	"k_events": "SELECT c.zxid, r.trimmed, e.zxid, e.events FROM {s}.clock c CROSS JOIN {s}.reaper r LEFT JOIN {s}.change e ON e.zxid > $1::bigint ORDER BY e.zxid LIMIT $2::int",

	"r_sync":   "SELECT c.zxid FROM {s}.clock c",
	"r_get":    "SELECT c.zxid, n.data, " + columns + " FROM {s}.clock c LEFT JOIN {s}.node n ON n.path = $1::text",
	"r_exists": "SELECT c.zxid, NULL::bytea, " + columns + " FROM {s}.clock c LEFT JOIN {s}.node n ON n.path = $1::text",
	"r_children": "SELECT c.zxid, NULL::bytea, " + columns + ", " + names +
		" FROM {s}.clock c CROSS JOIN (SELECT q.asked, n.* FROM (SELECT $1::text AS asked) q LEFT JOIN {s}.node n ON n.path = q.asked) n",
	"r_arm": "SELECT c.zxid, n.mzxid, n.pzxid FROM unnest($1::text[]) WITH ORDINALITY AS q(path, i) CROSS JOIN {s}.clock c LEFT JOIN {s}.node n ON n.path = q.path ORDER BY q.i",
	"r_many": "SELECT c.zxid, CASE WHEN NOT n.kids AND NOT n.cut THEN n.data END, " + columns + ", CASE WHEN n.kids AND NOT n.cut THEN " + names + " END, n.cut" +
		" FROM {s}.clock c CROSS JOIN (SELECT q.asked, q.kids, q.i, n.*," +
		" coalesce(sum(CASE WHEN q.kids THEN n.children * 50 ELSE octet_length(n.data) END) OVER (ORDER BY q.i ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) > " + mostReply + ", false) AS cut" +
		" FROM unnest($1::text[], $2::bool[]) WITH ORDINALITY AS q(asked, kids, i) LEFT JOIN {s}.node n ON n.path = q.asked) n ORDER BY n.i",

	"c_commit": "SELECT * FROM {s}.commit($1::bigint, $2::int, $3::bool, $4::int[], $5::int[], $6::text[], $7::text[], $8::bytea[], $9::int[], $10::int[])",

	// Waits until all earlier commits are durable. A transaction that writes nothing would not wait.
	"k_flush": "SELECT pg_logical_emit_message(true, 'coord', '')::text",
}

// settings protect the session from settings for the role or the database: its statements are short, and no timeout may end
// them. A wait for the turn ends with the lock timeout, so that the keep-alive behind it is not late. New tables have no
// statistics, so sequential scans are off. The server ends the connection of a client that is gone or accepts no data for the
// session timeout, since its transaction can have the turn.
const settings = "SELECT set_config(s.name, v.value, false) FROM (VALUES ('default_transaction_isolation', 'read committed'), ('default_transaction_read_only', 'off')," +
	" ('enable_seqscan', 'off'), ('jit', 'off'), ('client_encoding', 'UTF8'), ('plan_cache_mode', 'auto'), ('lock_timeout', '{lock}'), ('transaction_timeout', '0')," +
	" ('idle_in_transaction_session_timeout', '0'), ('idle_session_timeout', '0'), ('tcp_user_timeout', '{patience}ms')," +
	" ('tcp_keepalives_idle', '{idle}'), ('tcp_keepalives_interval', '{idle}'), ('tcp_keepalives_count', '3')," +
	" ('synchronous_commit', " + durable + ")) v(name, value) JOIN pg_settings s USING (name)"

// durable is the setting synchronous_commit: no crash loses an answered commit, whatever is set for the role.
const durable = "CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END"

// local begins each transaction of a connection to a pool: it makes the settings, and checks the history of the server.
const local = "SELECT {s}.same_history($1::uuid), set_config('lock_timeout', '{lock}', true), set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true), set_config('statement_timeout', '0', true), set_config('synchronous_commit', " + durable + ", true)"

// unprepared returns the statements for a connection to a pool. Each begins with its name, for readers of the server's log.
func unprepared(schema, lock string) map[string]string {
	all := map[string]string{"k_local": "/*k_local*/ " + fill(strings.Replace(local, "{lock}", lock, 1), schema)}
	for name, sql := range statements {
		all[name] = "/*" + name + "*/ " + fill(sql, schema)
	}
	return all
}

// settingsFor returns settings for a session with these timeouts.
func settingsFor(lock, timeout time.Duration) string {
	seconds := strconv.Itoa(max(1, int(timeout/(4*time.Second))))
	return strings.NewReplacer("{lock}", lockTimeout(lock), "{patience}", strconv.FormatInt(timeout.Milliseconds(), 10), "{idle}", seconds).Replace(settings)
}

// quote returns a name as an identifier, literal as a string constant.
func quote(name string) string   { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
func literal(text string) string { return `'` + strings.ReplaceAll(text, `'`, `''`) + `'` }

// fill replaces the placeholders for a schema.
func fill(sql, schema string) string {
	return strings.NewReplacer("{s}", quote(schema), "{l}", literal(schema), "{c}", literal(channel(schema)),
		"{t}", literal(quote(schema)+".layout")).Replace(sql)
}

// channel returns the name of a schema's channel for notifications.
func channel(schema string) string { return "coord:" + schema }
