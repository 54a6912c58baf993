package postgres_test

import (
	"encoding/binary"
	"errors"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/postgres/pgtest"
)

// statuses has the error for each status of the function commit.
var statuses = map[string]error{
	"ok": nil, "notfound": backend.ErrNotFound, "exists": backend.ErrExists, "nochildren": backend.ErrNoChildren,
	"badversion": backend.ErrBadVersion, "notempty": backend.ErrNotEmpty,
}

// Commits that share a transaction have the results that memory gives them one after the other. A refused commit applies nothing and
// does not affect the others.
func TestTogether_CommitsOfOneTransaction(t *testing.T) {
	t.Parallel()
	commits := [][]backend.Op{
		{backend.Create("/d", []byte("1"), backend.Persistent)},
		{backend.Create("/d/a", []byte("1"), backend.Persistent), backend.SetData("/d", []byte("2"), 0), backend.Create("/d/e", nil, backend.Ephemeral)},
		{backend.Create("/d/b-", nil, backend.PersistentSequential), backend.Delete("/missing", backend.AnyVersion)},
		{backend.Create("/d/a", nil, backend.Persistent)},
		{backend.Check("/d", 1), backend.Check("/d/a", 0)},
		{backend.Create("/d/c-", nil, backend.EphemeralSequential), backend.Create("/d/c-", []byte("3"), backend.PersistentSequential), backend.Delete("/d/a", 0), backend.SetData("/d", nil, 1)},
		{backend.Delete("/d", backend.AnyVersion)},
		{backend.SetData("/d", nil, 7)},
		{backend.SetData("/d", nil, 2)},
		{backend.Check("/d", 3), backend.Create("/d/e/x", nil, backend.Persistent)},
		{backend.SetData("/d", nil, 3), backend.Create("/f", nil, backend.Persistent), backend.Create("/f/g", nil, backend.Persistent), backend.Create("/f/h", nil, backend.Persistent), backend.Delete("/f/g", 0)},
		{backend.Delete("/d/e", 0)},
	}
	// Runs of operations, which are applied by one statement if all of them can be.
	const any = backend.AnyVersion
	all := func(kind func(path string) backend.Op, paths ...string) (ops []backend.Op) {
		for _, p := range paths {
			ops = append(ops, kind(p))
		}
		return ops
	}
	create := func(p string) backend.Op { return backend.Create(p, []byte("x"), backend.Persistent) }
	sequential := func(p string) backend.Op { return backend.Create(p, nil, backend.PersistentSequential) }
	remove := func(p string) backend.Op { return backend.Delete(p, any) }
	check := func(p string) backend.Op { return backend.Check(p, any) }
	commits = append(commits,
		append(all(create, "/r", "/r/1", "/r/2", "/r/3", "/r/4", "/r/5"), all(sequential, "/r/s-", "/r/s-", "/r/s-", "/r/s-")...),
		append(all(sequential, "/r/s-", "/r/s-", "/r/s-", "/r/s-", "/r/s-"), create("/r/6"), backend.Create("/r/e", nil, backend.Ephemeral)),
		all(create, "/r/7", "/r/8", "/r/3", "/r/9", "/r/4"),
		all(create, "/r/7", "/r/8", "/r/9", "/r/8", "/r/10"),
		all(create, "/r/e/7", "/r/e/8", "/r/e/9", "/r/e/10"),
		all(create, "/n/7", "/n/8", "/n/9", "/n/10"),
		all(create, "/r/s-0000000014", "/r/s-0000000016"), // two numbers that are taken
		all(sequential, "/r/s-", "/r/s-", "/r/s-", "/r/s-"),
		append(all(check, "/r/1", "/r/2", "/r/3", "/r/4", "/r/4"), all(check, "/r", "/", "/r/5", "/r/6")...),
		all(check, "/r/1", "/r/2", "/r/3", "/r/13", "/r/4"),
		append(all(check, "/r/1", "/r/2", "/r/3", "/r/4"), backend.Check("/r/5", 3)),
		all(remove, "/r/1", "/r/2", "/r/13", "/r/3", "/r/4"),
		all(remove, "/r/1", "/r/2", "/r/3", "/r/2", "/r/4"),
		append(all(create, "/r/1/a"), all(remove, "/r/4", "/r/3", "/r/2", "/r/1", "/r/5")...),
		append(all(remove, "/r/1", "/r/2", "/r/3", "/r/4"), backend.Delete("/r/5", 1)),
		append(append(all(remove, "/r/1", "/r/2", "/r/3", "/r/4"), all(create, "/r/1", "/r/4", "/r/2", "/r/3")...), backend.SetData("/r", nil, 0), sequential("/r/s-")),
		append(all(remove, "/r/1", "/r/2", "/r/3", "/r/4"), append(all(check, "/r", "/r/1", "/r/5", "/r/6"), remove("/r/5"))...),
		append(all(remove, "/r/1", "/r/2", "/r/3", "/r/4", "/r/5", "/r/6", "/r/e"), backend.Delete("/d", any)),
		append(all(create, "/q1", "/q2", "/q3", "/q4"), append(all(create, "/q2/a", "/q2/b", "/q2/c", "/q2/d", "/q3/a"), all(remove, "/q1", "/q2/a", "/q2/b", "/q2/c", "/q2/d", "/q2")...)...),
	)
	s := newService(t, shared.Get(t).Addr(), postgres.Options{SessionTimeout: time.Minute})
	session := opened(t, s.named())
	conn, err := pgx.Connect(t.Context(), pgtest.URL(s.server, ""))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	rows, err := postgres.CommitTogether(t.Context(), conn.PgConn(), s.opts.Schema, session.ID(), commits)
	if err != nil || len(rows) != len(commits) {
		t.Fatalf("%d answers to %d commits: %v", len(rows), len(commits), err)
	}
	like := opened(t, memory.New(&memory.Options{SessionTimeout: time.Minute, Spares: true, Limits: backend.Limits{Sequence: math.MaxInt64}}))
	for i, ops := range commits {
		results, err := like.Commit(t.Context(), ops...)
		var refused *backend.Error
		status, known := statuses[string(rows[i][0])]
		if errors.As(err, &refused); !known || !errors.Is(err, status) || (err == nil) != (status == nil) {
			t.Fatalf("commit %d is %s, in memory %v", i, rows[i][0], err)
		}
		if err != nil {
			if at := int(int32(binary.BigEndian.Uint32(rows[i][1]))); at != refused.Index {
				t.Errorf("operation %d of commit %d is to blame, in memory %d", at, i, refused.Index)
			}
			continue
		}
		got, err := postgres.ResultsOf(ops, rows[i])
		if err != nil {
			t.Fatal(err)
		}
		for j := range got {
			for _, r := range []*backend.Result{&got[j], &results[j]} {
				r.Stat = backend.Stat{Version: r.Stat.Version, Cversion: r.Stat.Cversion, NumChildren: r.Stat.NumChildren, DataLength: r.Stat.DataLength}
				r.Czxid = 0
			}
			if results[j].Siblings == 0 { // memory returns them for sequential nodes only
				got[j].Siblings = 0
			}
			if !reflect.DeepEqual(got[j], results[j]) {
				t.Errorf("operation %d of commit %d: %+v, in memory %+v", j, i, got[j], results[j])
			}
		}
	}
	// Each commit that changed something has a position of its own, and the clock has the last of them.
	last := int64(0)
	for i, r := range rows {
		if string(r[0]) != "ok" {
			continue
		}
		z := int64(binary.BigEndian.Uint64(r[2]))
		reads := !slices.ContainsFunc(commits[i], func(op backend.Op) bool { return op.Kind != backend.OpCheck })
		if reads && z != last || !reads && z != last+1 && last > 0 {
			t.Errorf("commit %d has the position %d after %d", i, z, last)
		}
		last = z
	}
	var clock int64
	if err := conn.QueryRow(t.Context(), `SELECT zxid FROM "`+s.opts.Schema+`".clock`).Scan(&clock); err != nil || clock != last {
		t.Errorf("the position is %d after a commit at %d, %v", clock, last, err)
	}
}
