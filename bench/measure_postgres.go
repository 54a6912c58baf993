package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/go-coord/coord"
)

// The groups of this file compare coord on PostgreSQL with what else a PostgreSQL server has: advisory
// locks and river, and with coord on the other services, with their servers on the same machine and disk.
const (
	pgPrefix = "postgres: "

	pgUncontended = pgPrefix + "uncontended"
	pgContended   = pgPrefix + "contended between clients"
	pgQueues      = pgPrefix + "queues"
	pgNear        = pgPrefix + "hand-over on the machine"
	pgHandOver    = pgPrefix + "hand-over"
)

// The names of cells that targets and ratios refer to.
const (
	whatFlush      = "update of one row, one after the other"
	whatTrip       = "SELECT 1, one after the other"
	whatRow        = "insert and delete of a row"
	whatHandOver   = "hand-over"
	whatPut        = "put"
	whatPutAll     = "put all"
	whatPutAllFast = "put all, by COPY"
	whatWork       = "work"
	whatEager      = "work, FetchCooldown of 1ms"
)

const pgClients = 8

// postgresGroups are the groups with PostgreSQL. Each has clients of its own, which end with it: a
// notification of PostgreSQL wakes all clients that listen.
func postgresGroups(e *env, p *peers, s sizes) []*group {
	if p.postgres == nil {
		return nil
	}
	over := handOverGroup(e, p.onPostgresToo(true))
	over.name = pgHandOver
	for _, c := range over.cells {
		c.Group = pgHandOver
	}
	return []*group{
		pgUncontendedGroup(e, p, s.callers, s.long),
		pgContendedGroup(e, p, s.long),
		pgQueuesGroup(e, p, s.putters, s.handlers, s.fill, s.long),
		pgNearGroup(e, p, s.long),
		over, // last: its clients stay until the end of the run
	}
}

// onPostgresToo returns coord on PostgreSQL and on the other services with servers, and advisory locks.
func (p *peers) onPostgresToo(advisory bool) []*contestant {
	all := []*contestant{p.postgres.coord(), p.postgres.early()}
	if advisory {
		all = append(all, p.postgres.advisory())
	}
	all = append(all, ours)
	if p.etcd != nil {
		all = append(all, p.etcd.coord())
	}
	return all
}

// pgGroup returns a group with clients of its own.
func pgGroup(e *env, g *group) (*group, *place) {
	at := &place{where: onPostgres, root: e.root, addrs: e.addrs}
	g.end, g.against = at.Close, []string{whatFlush, whatTrip}
	return g, at
}

// limits adds the two references of PostgreSQL: a flush of the disk, and a round trip, one after the other.
func (g *group) limits(e *env, p *peers, at *place, span time.Duration) {
	for _, x := range []struct{ what, sql string }{
		{whatFlush, "UPDATE cell SET n = n + 1 WHERE id = $1"},
		{whatTrip, "SELECT 1 WHERE $1 <> ''"},
	} {
		g.add(x.what, byPgx, onPostgres, span, func(ctx context.Context) (sample, error) {
			return e.pgSteps(p.metered(ctx, e, onPostgres), p, at, 1, span, func(c *pgx.Conn, id string) step {
				return func(ctx context.Context) error {
					done, err := c.Exec(ctx, x.sql, id)
					if err == nil && done.RowsAffected() != 1 {
						err = fmt.Errorf("%q affected %d rows", x.sql, done.RowsAffected())
					}
					return err
				}
			})
		}).at("callers", 1)
	}
}

// pgSteps hammers the server by pgx: callers have a connection and a row each.
func (e *env) pgSteps(ctx context.Context, p *peers, at *place, callers int, span time.Duration, stepOf func(c *pgx.Conn, id string) step) (sample, error) {
	conns, err := at.conns(ctx, p.postgres.advisory(), 1)
	if err != nil {
		return nil, err
	}
	var steps []step
	base := e.path()
	for i := range callers {
		c, err := conns[0].(*pgConn).conn(ctx, i)
		if err != nil {
			return nil, err
		}
		id := fmt.Sprintf("%s-%03d", base, i)
		if _, err := c.Exec(ctx, "INSERT INTO cell VALUES ($1, 0)", id); err != nil {
			return nil, err
		}
		do := stepOf(c, id)
		if err := do(ctx); err != nil { // prepares the statement
			return nil, err
		}
		steps = append(steps, do)
	}
	return hammer(ctx, span, steps)
}

// pgPair inserts a row and deletes it: two commits, as a lock and its release are.
func pgPair(c *pgx.Conn, id string) step {
	id += "-pair"
	return func(ctx context.Context) error {
		if _, err := c.Exec(ctx, "INSERT INTO cell VALUES ($1, 0)", id); err != nil {
			return err
		}
		_, err := c.Exec(ctx, "DELETE FROM cell WHERE id = $1", id)
		return err
	}
}

func pgUncontendedGroup(e *env, p *peers, widths []int, span time.Duration) *group {
	g, at := pgGroup(e, &group{
		name: pgUncontended, warm: 1, shown: []metric{mRate, mP50, mP99, mAllocs, mCPU, mServerCPU, mBusy},
		about: "Callers, each with a lock of its own. Those of coord share a client; the others have a connection each. " +
			"An advisory lock writes nothing; it has no token, and ends with its connection. 'Insert and delete of a row' are two commits by as many connections.",
	})
	g.limits(e, p, at, span)
	for _, n := range widths {
		g.add(whatRow, byPgx, onPostgres, span+300*time.Millisecond, func(ctx context.Context) (sample, error) {
			return e.pgSteps(p.metered(ctx, e, onPostgres), p, at, n, span, pgPair)
		}).at("callers", float64(n))
		for _, x := range p.onPostgresToo(true) {
			g.add(whatCycle, x.who, x.where, span+time.Duration(n)*5*time.Millisecond, func(ctx context.Context) (sample, error) {
				return native{x}.cycles(p.metered(ctx, e, x.where), at, e.root+e.path(), n, span)
			}).at("callers", float64(n))
		}
	}
	return g
}

func pgContendedGroup(e *env, p *peers, span time.Duration) *group {
	g, at := pgGroup(e, &group{
		name: pgContended, warm: 1, shown: []metric{mRate, mP50, mP99, mCPU, mServerCPU, mBusy},
		about: "Clients with a session each take turns with one lock and hold it for no time. The times are those of a hand-over.",
	})
	g.limits(e, p, at, span)
	for _, x := range p.onPostgresToo(true) {
		g.add(whatContend, x.who, x.where, span+200*time.Millisecond, func(ctx context.Context) (sample, error) {
			return native{x}.contend(p.metered(ctx, e, x.where), at, e.root+e.path(), pgClients, false, span)
		}).at("clients", pgClients)
	}
	return g
}

// pgNearGroup measures hand-overs without any distance, so that the time is that of the work and the disk.
func pgNearGroup(e *env, p *peers, span time.Duration) *group {
	const clients, turns = 9, 30
	g, at := pgGroup(e, &group{
		name: pgNear, shown: []metric{mP50, mP90, mP99},
		about: fmt.Sprintf("Nine clients take turns with one lock and hold it for %v, so that all others are queued. ", nearHold) +
			"The time is that from the begin of a release to the next grant, and for the references that of one request.",
	})
	g.limits(e, p, at, span)
	for _, x := range p.onPostgresToo(true) {
		g.add(whatHandOver, x.who, x.where, turns*nearHold+200*time.Millisecond, func(ctx context.Context) (sample, error) {
			conns, err := at.conns(ctx, x, clients)
			if err != nil {
				return nil, err
			}
			path := e.root + e.path()
			lockers, err := native{x}.lockers(ctx, conns, clients, func(int) string { return path })
			if err != nil {
				return nil, err
			}
			s, err := contend(ctx, turns*nearHold, nearHold, lockers)
			return s.without(mRate), err // it is that of the holds
		}).at("clients", clients)
	}
	return g
}

const nearHold = 30 * time.Millisecond

func pgQueuesGroup(e *env, p *peers, putters, handlers []int, fill int, span time.Duration) *group {
	g, at := pgGroup(e, &group{
		name: pgQueues, warm: 1, shown: []metric{mRate, mP50, mP99, mCPU, mServerCPU, mBusy},
		about: fmt.Sprintf("Items of %d bytes. Callers of one client put them one by one; 'put all' puts %d at a time, for which the times are those of a call. ", len(pgItem), batchOf(fill)) +
			fmt.Sprintf("'Work' processes %d items that are in the queue, by handlers that do nothing, until all are acknowledged, or for twice the time of the other cells. ", fill) +
			"The rate is that of acknowledged items, from the first handler on. river waits by default for 100 ms (FetchCooldown) between two fetches of as many jobs as it has workers.",
	})
	g.limits(e, p, at, span)
	r := &riverQueue{}
	var once sync.Once
	var failed error
	get := func(ctx context.Context) (*riverQueue, error) {
		once.Do(func() {
			var q *riverQueue
			if q, failed = openRiver(ctx, p.postgres); failed == nil {
				r = q
			}
		})
		return r, failed
	}
	g.end = func() error {
		if r.pool != nil {
			r.close()
		}
		return at.Close()
	}
	metered := func(ctx context.Context, where string) context.Context { return p.metered(ctx, e, where) }
	cleared := func(ctx context.Context, q *riverQueue, s sample, err error) (sample, error) {
		return s, errors.Join(err, q.clear(context.WithoutCancel(ctx)))
	}
	queues := p.onPostgresToo(false)
	for _, n := range putters {
		for _, x := range queues {
			g.add(whatPut, x.who, x.where, span+300*time.Millisecond, func(ctx context.Context) (sample, error) {
				return e.pgPuts(metered(ctx, x.where), at, x, n, 1, span)
			}).at("callers", float64(n))
		}
		g.add(whatPut, byRiver, onPostgres, span+200*time.Millisecond, func(ctx context.Context) (sample, error) {
			q, err := get(ctx)
			if err != nil {
				return nil, err
			}
			steps := make([]step, n)
			for i := range steps {
				steps[i] = q.put
			}
			s, err := hammer(metered(ctx, onPostgres), span, steps)
			return cleared(ctx, q, s, err)
		}).at("callers", float64(n))
	}
	batch := batchOf(fill)
	for _, x := range queues {
		g.add(whatPutAll, x.who, x.where, span+time.Second, func(ctx context.Context) (sample, error) {
			return e.pgPuts(metered(ctx, x.where), at, x, 1, batch, span)
		}).at("items", float64(batch))
	}
	for _, what := range []string{whatPutAll, whatPutAllFast} {
		g.add(what, byRiver, onPostgres, span+200*time.Millisecond, func(ctx context.Context) (sample, error) {
			q, err := get(ctx)
			if err != nil {
				return nil, err
			}
			many := manyRiver(batch)
			s, err := hammer(metered(ctx, onPostgres), span, []step{func(ctx context.Context) (err error) {
				if what == whatPutAll {
					_, err = q.client.InsertMany(ctx, many)
				} else {
					_, err = q.client.InsertManyFast(ctx, many)
				}
				return err
			}})
			return cleared(ctx, q, s.perItem(batch), err)
		}).at("items", float64(batch))
	}
	for _, n := range handlers {
		for _, x := range queues {
			g.add(whatWork, x.who, x.where, 3*span+time.Second, func(ctx context.Context) (sample, error) {
				return e.pgWork(metered(ctx, x.where), at, x, n, fill, 2*span)
			}).at("handlers", float64(n))
		}
		for _, what := range []string{whatWork, whatEager} {
			var cooldown time.Duration
			if what == whatEager {
				cooldown = time.Millisecond
			}
			g.add(what, byRiver, onPostgres, 2*span+time.Second, func(ctx context.Context) (sample, error) {
				q, err := get(ctx)
				if err != nil {
					return nil, err
				}
				return q.work(metered(ctx, onPostgres), n, fill, cooldown, 2*span)
			}).at("handlers", float64(n))
		}
	}
	return g
}

// batchOf returns the number of items that are put at a time, for a queue of fill items.
func batchOf(fill int) int { return (fill + 4) / 5 }

// pgPuts puts items in batches and takes none. The rate counts items.
func (e *env) pgPuts(ctx context.Context, at *place, who *contestant, callers, batch int, span time.Duration) (_ sample, err error) {
	conns, err := at.conns(ctx, who, 1)
	if err != nil {
		return nil, err
	}
	q := coord.NewQueue(conns[0].(*coordConn).c, e.path(), &coord.QueueOptions[string]{Codec: coord.Text()})
	vs := slices.Repeat([]string{pgItem}, batch)
	put := func(ctx context.Context) error { _, err := q.PutAll(ctx, vs...); return err }
	if batch == 1 {
		put = func(ctx context.Context) error { _, err := q.Put(ctx, pgItem); return err }
	}
	if err := put(ctx); err != nil { // makes the directories
		return nil, err
	}
	defer func() {
		_, perr := q.Purge(context.WithoutCancel(ctx))
		err = errors.Join(err, perr)
	}()
	steps := make([]step, callers)
	for i := range steps {
		steps[i] = put
	}
	s, err := hammer(ctx, span, steps)
	return s.perItem(batch), err
}

// pgWork makes n handlers process the items of a queue that another client has put.
func (e *env) pgWork(ctx context.Context, at *place, who *contestant, n, items int, span time.Duration) (_ sample, err error) {
	conns, err := at.conns(ctx, who, 2)
	if err != nil {
		return nil, err
	}
	o := &coord.QueueOptions[string]{Codec: coord.Text()}
	path := e.path()
	filled := coord.NewQueue(conns[0].(*coordConn).c, path, o)
	if _, err := filled.PutAll(ctx, slices.Repeat([]string{pgItem}, items)...); err != nil {
		return nil, err
	}
	defer func() {
		_, perr := filled.Purge(context.WithoutCancel(ctx))
		err = errors.Join(err, perr)
	}()
	w := startWork(ctx)
	life, cancel := context.WithCancel(ctx)
	defer cancel()
	var handled atomic.Int64
	first := sync.OnceFunc(w.first)
	worked := make(chan error, 1)
	go func() {
		q := coord.NewQueue(conns[1].(*coordConn).c, path, o)
		worked <- q.Work(life, n, func(context.Context, *coord.Item[string]) error {
			first()
			if !w.running(int(handled.Add(1)), items, span) {
				cancel()
			}
			return nil
		})
	}()
	if err := <-worked; err != nil {
		return nil, err
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	s := w.sample(int(handled.Load()))
	left, err := filled.Len(ctx)
	if err == nil && left != items-int(handled.Load()) {
		err = fmt.Errorf("%d of %d items were handled, and %d are left", handled.Load(), items, left)
	}
	return s, err
}

// pgItem is an item in these queues, as long as those in other queues. river stores it as JSON in which no byte
// is escaped.
var pgItem = strings.Repeat("x", len(payload))

// work is the measurement of handlers. Its time begins with the first of them.
type work struct {
	metered func(s sample, n int)
	before  costs

	mu    sync.Mutex
	began time.Time
}

func startWork(ctx context.Context) *work {
	return &work{metered: startMeter(ctx), before: readCosts()}
}

// first tells that the first handler runs.
func (w *work) first() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.began = time.Now()
}

// running reports whether the measurement continues after so many of all items. It has at least one.
func (w *work) running(done, all int, span time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return done == 0 || done < all && time.Since(w.began) < span
}

// sample ends the measurement.
func (w *work) sample(done int) sample {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := sample{mRate: float64(done) / time.Since(w.began).Seconds()}
	s.addCosts(w.before, readCosts(), done)
	w.metered(s, done)
	return s
}
