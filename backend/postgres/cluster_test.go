//go:build linux

package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/postgres/pgtest"
	"github.com/go-coord/coord/internal/ensemble"
	"github.com/go-coord/coord/internal/fakeclock"
	"github.com/go-coord/coord/internal/zklog"
)

func init() {
	Ensembles.Start = func(t *testing.T) ensemble.Ensemble { return startCluster(t) }
	Ensembles.StartFragile = func(t *testing.T) ensemble.FragileEnsemble { return startFragile(t) }
	Ensembles.Troubles = troubles
}

// cluster is a primary and its synchronous standby. Triggers record each change of the tree in a table, in the transaction of
// the change.
type cluster struct {
	nodes [2]*pgtest.Server

	mu      sync.Mutex
	primary int // in nodes

	// Of startFragile, by the numbers of the nodes.
	disks   [2]*disk // of the data and the write-ahead log, not of the server's log
	noDisk  error
	clocks  *fakeclock.Clocks
	noClock error

	control *pgx.Conn // for Write, of its only caller; nil while there is none
	tries   int
}

// Without fsync a busy disk does not delay leases; no test ends the machine. A standby that has lost its
// primary connects again soon: commits wait for that.
var clusterSettings = map[string]string{"fsync": "off", "max_connections": "200", "wal_retrieve_retry_interval": "100ms"}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	return startIn(t, func(int) []string { return nil })
}

// startIn starts a cluster with an environment for each node.
func startIn(t *testing.T, env func(node int) []string) *cluster {
	t.Helper()
	p := pgtest.Start(t, &pgtest.Options{Settings: clusterSettings, Env: env(0)})
	s, err := p.Standby(t.Context(), &pgtest.StandbyOptions{Synchronous: true, Env: env(1)})
	if err == nil {
		_, err = p.Exec(t.Context(), "", "BEGIN; "+postgres.Migration(sharedSchema)+";"+strings.ReplaceAll(recordSQL, "{s}", sharedSchema)+"COMMIT")
	}
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{nodes: [2]*pgtest.Server{p, s}}
	t.Cleanup(func() { c.hangUp() })
	return c
}

// startFragile starts a cluster whose disks can be full and whose clocks can be set, as far as this machine allows that.
func startFragile(t *testing.T) *cluster {
	t.Helper()
	clocks, noClock := fakeclock.Make(t)
	c := startIn(t, func(node int) []string {
		if noClock != nil {
			return nil
		}
		clocks.Set(t, node, 0)
		return clocks.Env(node)
	})
	c.clocks, c.noClock = clocks, noClock
	for i, s := range c.nodes {
		if c.noDisk == nil {
			c.disks[i], c.noDisk = moveToDisk(t, s)
		}
	}
	return c
}

const diskSize = 4 << 30 // only used space takes memory

// moveToDisk moves the data of a server to a disk of its own.
func moveToDisk(t *testing.T, s *pgtest.Server) (*disk, error) {
	t.Helper()
	data, moved := s.DataDir(), s.DataDir()+".moved"
	err := errors.Join(s.Stop(), os.Rename(data, moved), os.Mkdir(data, 0o700))
	if err != nil {
		t.Fatal(err)
	}
	d, noDisk := mountDisk(t, data, diskSize, moved)
	if noDisk != nil {
		err = errors.Join(os.Remove(data), os.Rename(moved, data))
	} else if out, failed := exec.Command("cp", "-a", moved+"/.", data).CombinedOutput(); failed != nil {
		err = fmt.Errorf("%w: %s", failed, out)
	} else {
		err = os.RemoveAll(moved)
	}
	if err := errors.Join(err, s.Start(t.Context())); err != nil {
		t.Fatal(err)
	}
	return d, noDisk
}

// recordSQL makes the record: the operations of each commit, in their order, and then its position, when its events are sent. (A
// trigger of the table clock would miss positions: commits that share a transaction change it once.)
const recordSQL = `
CREATE TABLE {s}.record (
	id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	kind    text NOT NULL, -- c, s, d, x for the end of a session, and z for the position
	zxid    bigint NOT NULL DEFAULT 0,
	path    text NOT NULL DEFAULT '',
	data    bytea,
	owner   bigint NOT NULL DEFAULT 0,
	version int NOT NULL DEFAULT 0,
	at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE FUNCTION {s}.record() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF TG_TABLE_NAME = 'session' THEN
		INSERT INTO {s}.record (kind, owner) VALUES ('x', OLD.id);
	ELSIF TG_OP = 'INSERT' THEN
		INSERT INTO {s}.record (kind, path, data, owner, version) VALUES ('c', NEW.path, NEW.data, NEW.owner, NEW.version);
	ELSIF TG_OP = 'DELETE' THEN
		INSERT INTO {s}.record (kind, path, owner) VALUES ('d', OLD.path, OLD.owner);
	ELSIF NEW.version <> OLD.version THEN
		INSERT INTO {s}.record (kind, path, data, owner, version) VALUES ('s', NEW.path, NEW.data, NEW.owner, NEW.version);
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER record AFTER INSERT OR UPDATE OR DELETE ON {s}.node FOR EACH ROW EXECUTE FUNCTION {s}.record();
CREATE TRIGGER record AFTER DELETE ON {s}.session FOR EACH ROW EXECUTE FUNCTION {s}.record();
ALTER FUNCTION {s}.tell RENAME TO send_events;
CREATE FUNCTION {s}.tell(polled bool, secret text, z bigint, events text[]) RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO {s}.record (kind, zxid) VALUES ('z', z);
	RETURN {s}.send_events(polled, secret, z, events);
END $$;
CREATE TABLE control (one bool PRIMARY KEY DEFAULT true, version int NOT NULL);
INSERT INTO control VALUES (true, 0);
`

func (c *cluster) Addrs() []string { return []string{c.nodes[0].Addr(), c.nodes[1].Addr()} }

func (c *cluster) Servers() []ensemble.Server { return []ensemble.Server{c.nodes[0], c.nodes[1]} }

// roles returns the primary and its standby.
func (c *cluster) roles() (primary, standby *pgtest.Server) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[c.primary], c.nodes[1-c.primary]
}

func (c *cluster) Leader(ctx context.Context) (ensemble.Server, error) {
	p, _ := c.roles()
	return p, p.Await(ctx)
}

// exec runs SQL on the primary until it answers.
func (c *cluster) exec(ctx context.Context, sql string) (string, error) {
	for {
		p, _ := c.roles()
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		out, err := p.Exec(attempt, "", sql)
		cancel()
		if err == nil || ctx.Err() != nil {
			return out, err
		}
		select {
		case <-time.After(50 * time.Millisecond): // nothing signals that the server serves
		case <-ctx.Done():
		}
	}
}

func (c *cluster) Expire(ctx context.Context, session int64) error {
	_, err := c.exec(ctx, fmt.Sprintf("SELECT %s.finish(%d)", sharedSchema, session))
	return err
}

// Compact removes what no snapshot needs.
func (c *cluster) Compact(ctx context.Context) error {
	_, err := c.exec(ctx, fmt.Sprintf("VACUUM %[1]s.node, %[1]s.session, %[1]s.clock", sharedSchema))
	return err
}

// CutOff and FillDisk are faults of other services. The disks of a cluster have troubles of their own.
func (c *cluster) CutOff(ensemble.Server, bool)   {}
func (c *cluster) Disk() (ensemble.Server, error) { return nil, errors.ErrUnsupported }
func (c *cluster) FillDisk(context.Context) error { return errors.ErrUnsupported }
func (c *cluster) EmptyDisk() error               { return errors.ErrUnsupported }

func (c *cluster) Write(ctx context.Context) (version int32, zxid int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if c.control == nil {
		c.tries++
		url := pgtest.URL(c.Addrs()[c.tries%2], "") + "&target_session_attrs=read-write"
		if c.control, err = pgx.Connect(ctx, url); err != nil {
			return 0, 0, err
		}
	}
	err = c.control.QueryRow(ctx, "UPDATE control SET version = version + 1 RETURNING version").Scan(&version)
	if err != nil {
		c.hangUp()
	}
	return version, int64(version), err
}

func (c *cluster) hangUp() {
	if c.control != nil {
		closed, cancel := context.WithCancel(context.Background())
		cancel() // so that Close sends nothing to the server, which may be paused
		_ = c.control.Close(closed)
		c.control = nil
	}
}

func (c *cluster) Log(ctx context.Context) ([]zklog.Txn, error) {
	p, _ := c.roles()
	conn, err := pgx.Connect(ctx, p.URL(""))
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	rows, err := conn.Query(ctx, fmt.Sprintf("SELECT zxid, kind, path, data, owner, version, at FROM %s.record ORDER BY id", sharedSchema))
	if err != nil {
		return nil, err
	}
	var txns []zklog.Txn
	var zxid, owner int64
	var op zklog.Op
	var kind string
	var at time.Time
	var x zklog.Txn
	_, err = pgx.ForEachRow(rows, []any{&zxid, &kind, &op.Path, &op.Data, &owner, &op.Version, &at}, func() error {
		switch kind {
		case "z":
			switch n := len(txns); {
			case n > 0 && zxid <= txns[n-1].Zxid:
				return fmt.Errorf("position %#x after %#x", zxid, txns[n-1].Zxid)
			case len(x.Ops) > 0 || x.Type == zklog.CloseSession:
				x.Zxid, x.Time = zxid, at
				txns = append(txns, x)
			}
			x = zklog.Txn{}
			return nil
		case "x":
			x.Type, x.Session = zklog.CloseSession, owner
			return nil
		case "c":
			op.Type, op.Ephemeral = zklog.Create, owner != 0
			if owner != 0 {
				x.Session = owner
			}
		case "s":
			op.Type, op.Ephemeral = zklog.SetData, false
		case "d":
			op.Type, op.Ephemeral = zklog.Delete, false
		}
		if x.Type != zklog.CloseSession {
			x.Type = zklog.Multi
		}
		x.Ops = append(x.Ops, op)
		op.Data = nil
		return nil
	})
	if err == nil && len(x.Ops) > 0 {
		err = fmt.Errorf("%d operations without a position", len(x.Ops))
	}
	return txns, err
}

// The troubles of a primary and its standby. While the standby is down, commits wait for it.
var troubles = []ensemble.Trouble{
	{Kind: "primary killed", Alone: true, Brief: true, Do: func(ctx context.Context, e ensemble.FragileEnsemble, _ *rand.Rand) error {
		p, _ := e.(*cluster).roles()
		p.Kill()
		return p.Start(ctx)
	}},
	{Kind: "primary restarted", Alone: true, Do: func(ctx context.Context, e ensemble.FragileEnsemble, _ *rand.Rand) error {
		p, _ := e.(*cluster).roles()
		return errors.Join(p.Stop(), p.Start(ctx))
	}},
	{Kind: "primary restarted at once", Alone: true, Do: func(ctx context.Context, e ensemble.FragileEnsemble, _ *rand.Rand) error {
		p, _ := e.(*cluster).roles()
		return errors.Join(p.StopNow(), p.Start(ctx))
	}},
	{Kind: "primary stopped", Alone: true, Brief: true, Do: func(ctx context.Context, e ensemble.FragileEnsemble, r *rand.Rand) error {
		p, _ := e.(*cluster).roles()
		return pause(ctx, p, time.Duration(1000+r.IntN(3000))*time.Millisecond)
	}},
	{Kind: "standby promoted", Alone: true, Brief: true, Do: func(ctx context.Context, e ensemble.FragileEnsemble, _ *rand.Rand) error {
		c := e.(*cluster)
		p, _ := c.roles()
		p.Kill()
		return c.failOver(ctx)
	}},
	{Kind: "standby promoted beside its primary", Alone: true, Do: func(ctx context.Context, e ensemble.FragileEnsemble, r *rand.Rand) error {
		// The former primary is paused during the promotion. It resumes with clients connected to it.
		c := e.(*cluster)
		p, s := c.roles()
		if err := p.Pause(); err != nil {
			return err
		}
		if err := s.Promote(ctx); err != nil {
			return err
		}
		err := p.Resume()
		sleepFor(ctx, time.Duration(2000+r.IntN(4000))*time.Millisecond) // the length of the fault
		return errors.Join(err, c.failOver(ctx))
	}},
	{Kind: "standby killed", Do: func(ctx context.Context, e ensemble.FragileEnsemble, _ *rand.Rand) error {
		_, s := e.(*cluster).roles()
		s.Kill()
		return s.Start(ctx)
	}},
	{Kind: "standby stopped", Do: func(ctx context.Context, e ensemble.FragileEnsemble, r *rand.Rand) error {
		_, s := e.(*cluster).roles()
		return pause(ctx, s, time.Duration(200+r.IntN(1500))*time.Millisecond)
	}},
	{Kind: "process killed", Alone: true, Do: func(ctx context.Context, e ensemble.FragileEnsemble, r *rand.Rand) error {
		// The postmaster then ends all other processes, and recovers.
		c := e.(*cluster)
		p, _ := c.roles()
		pids, err := p.Backends()
		if err != nil || len(pids) == 0 {
			return errors.Join(err, errors.New("no process"))
		}
		if err := syscall.Kill(pids[r.IntN(len(pids))], syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
		_, err = c.exec(ctx, "SELECT 1")
		return err
	}},
	{Kind: "connections terminated", Brief: true, Do: func(ctx context.Context, e ensemble.FragileEnsemble, _ *rand.Rand) error {
		_, err := e.(*cluster).exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'coord' AND random() < 0.5")
		return err
	}},
	{Kind: "tables rewritten", Do: func(ctx context.Context, e ensemble.FragileEnsemble, _ *rand.Rand) error {
		c := e.(*cluster)
		for _, table := range []string{"node", "session", "clock"} {
			if _, err := c.exec(ctx, fmt.Sprintf("VACUUM FULL %s.%s", sharedSchema, table)); err != nil {
				return err
			}
		}
		return nil
	}},
	{Kind: "no space for data", Brief: true, Missing: noDisk, Do: func(ctx context.Context, e ensemble.FragileEnsemble, r *rand.Rand) error {
		c := e.(*cluster)
		return c.withoutSpace(ctx, r, func(said func(string) bool) bool { return said("ERROR: .*No space left on device") })
	}},
	{Kind: "no space for WAL", Alone: true, Missing: noDisk, Do: func(ctx context.Context, e ensemble.FragileEnsemble, r *rand.Rand) error {
		// The primary ends each time that it begins a segment of the WAL, and recovers or not.
		c := e.(*cluster)
		p, _ := c.roles()
		return c.withoutSpace(ctx, r, func(said func(string) bool) bool {
			_, _ = p.Exec(ctx, "", "SELECT pg_logical_emit_message(true, '', ''), pg_switch_wal()") // the log shows the result
			return said("PANIC: .*No space left on device")
		})
	}},
	{Kind: "clock set", Brief: true, Missing: func(e ensemble.FragileEnsemble) error { return e.(*cluster).noClock },
		Do: func(ctx context.Context, e ensemble.FragileEnsemble, r *rand.Rand) error {
			// A step forward, by more than a session timeout, and one back: a step back begins all timeouts again, so no two steps
			// forward count against one timeout. Items that are put between the two are late by the length of the steps.
			c := e.(*cluster)
			p, _ := c.roles()
			err := stepClock(ctx, p, c.clocks, c.number(p), time.Duration(5+r.IntN(5))*time.Second)
			sleepFor(ctx, time.Duration(1000+r.IntN(1500))*time.Millisecond) // the length of the fault: several reaps
			return errors.Join(err, stepClock(ctx, p, c.clocks, c.number(p), 0))
		}},
}

func noDisk(e ensemble.FragileEnsemble) error { return e.(*cluster).noDisk }

// number returns the number of a node.
func (c *cluster) number(s *pgtest.Server) int {
	if s == c.nodes[0] {
		return 0
	}
	return 1
}

// withoutSpace fills the disk of the primary, and makes room some time after the server's log shows that it has noticed. seen is
// called until then, with a function that searches the new part of the log.
func (c *cluster) withoutSpace(ctx context.Context, r *rand.Rand, seen func(said func(pattern string) bool) bool) error {
	p, _ := c.roles()
	d := c.disks[c.number(p)]
	before, err := os.ReadFile(p.LogFile())
	if err != nil {
		return err
	}
	said := func(pattern string) bool {
		log, err := os.ReadFile(p.LogFile())
		return err == nil && regexp.MustCompile(pattern).Match(log[len(before):])
	}
	err = d.fill()
	for err == nil && !seen(said) {
		if sleepFor(ctx, 10*time.Millisecond); ctx.Err() != nil { // nothing signals it
			err = fmt.Errorf("the server never noticed that its disk was full; end of its log:\n%s", p.LogTail())
		}
	}
	sleepFor(ctx, time.Duration(500+r.IntN(1000))*time.Millisecond) // the length of the fault
	err = errors.Join(err, d.resize(diskSize))
	for { // a start, or a recovery by itself, that began without space fails
		started := p.Start(ctx)
		if started == nil {
			_, started = p.Exec(ctx, "", "SELECT 1")
		}
		if started == nil || ctx.Err() != nil {
			return errors.Join(err, started)
		}
		sleepFor(ctx, 10*time.Millisecond) // nothing signals the end of the recovery
	}
}

func sleepFor(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// pause stops a server for some time, and returns when it serves.
func pause(ctx context.Context, s *pgtest.Server, d time.Duration) error {
	if err := s.Pause(); err != nil {
		return err
	}
	sleepFor(ctx, d) // the length of the fault
	return errors.Join(s.Resume(), s.Await(ctx))
}

// failOver makes the standby the primary, if it is none yet, and the former primary its standby.
func (c *cluster) failOver(ctx context.Context) error {
	p, s := c.roles()
	if out, err := s.Exec(ctx, "", "SELECT pg_is_in_recovery()"); err != nil {
		return err
	} else if out == "t" {
		if err := s.Promote(ctx); err != nil {
			return err
		}
	}
	c.mu.Lock()
	c.primary = 1 - c.primary
	c.mu.Unlock()
	return p.Rebuild(ctx, s, &pgtest.StandbyOptions{Synchronous: true})
}
