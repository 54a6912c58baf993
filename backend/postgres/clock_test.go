package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/postgres/pgtest"
	"github.com/go-coord/coord/internal/fakeclock"
)

// setClock makes the times of a schema older, which has the effect of a step of the server's clock.
func (s *service) setClock(t *testing.T, step time.Duration) {
	t.Helper()
	err := s.exec(fmt.Sprintf(`DO $$ BEGIN
		UPDATE %[1]s.reaper SET at = at - %[2]d * interval '1 ms', collected = collected - %[2]d * interval '1 ms';
		UPDATE %[1]s.session SET expires = expires - %[2]d * interval '1 ms';
	END $$`, s.opts.Schema, step.Milliseconds()))
	if err != nil {
		t.Fatal(err)
	}
}

// gone waits until a node is deleted.
func gone(t *testing.T, s backend.Session, path string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		w := backend.NewWatch()
		_, _, err := s.Get(ctx, path, w)
		if err != nil {
			w.Stop()
			if backend.ContextError(ctx) != nil {
				t.Fatalf("%s is still there", path)
			}
			return
		}
		select {
		case <-w.Fired():
		case <-ctx.Done():
			t.Fatalf("%s is still there", path)
		}
	}
}

// No step of the clock ends a living session, even if it has no contact for a part of its lease, and a dead session ends
// afterwards.
func TestClock_StepsEndNoLivingSession(t *testing.T) {
	t.Parallel()
	s := newService(t, shared.Get(t).Addr(), postgres.Options{SessionTimeout: 12 * time.Second})
	for i, step := range []time.Duration{2 * time.Second, time.Hour, -time.Hour, 24 * 365 * time.Hour} {
		t.Run(step.String(), func(t *testing.T) {
			name := func(of string) string { return fmt.Sprint(of, i) }
			living, cut, dead := opened(t, s.link(name("living"))), opened(t, s.link(name("cut"))), opened(t, s.link(name("dead")))
			create(t, cut, name("/cut"), backend.Ephemeral)
			create(t, dead, name("/dead"), backend.Ephemeral)
			s.link(name("cut")).Partition()
			s.setClock(t, step)
			// Each reap that is due finds the step or comes after it.
			if err := s.exec(fmt.Sprintf("SELECT %[1]s.reap(0), pg_sleep(0.3), %[1]s.reap(0)", s.opts.Schema)); err != nil {
				t.Fatal(err)
			}
			if _, err := living.Exists(t.Context(), name("/cut"), nil); err != nil {
				t.Errorf("the node of a session whose lease lasts: %v, the session %v", err, cut.Err())
			}
			s.link(name("cut")).Heal()
			if _, err := cut.Exists(t.Context(), name("/cut"), nil); err != nil {
				t.Errorf("the session that was cut: %v", err)
			}
			if err := living.Err(); err != nil {
				t.Error(err)
			}
			if i == 3 {
				s.link(name("dead")).Partition()
				gone(t, living, name("/dead"))
			}
		})
	}
}

// The clock of the server is set while clients contend for a lock and a queue: all of them keep their sessions and make progress. A
// session whose client is gone ends.
func TestClock_StepsUnderClients(t *testing.T) {
	t.Parallel()
	clocks := fakeclock.New(t)
	clocks.Set(t, 1, 0)
	server := pgtest.Start(t, &pgtest.Options{Settings: map[string]string{"fsync": "off"}, Env: clocks.Env(1)})
	sh := newBareShop(t, newService(t, server.Addr(), postgres.Options{SessionTimeout: 12 * time.Second}), "15s")
	c := newCrowd(sh, 4)
	c.progress("at first")
	for _, ahead := range []time.Duration{time.Hour, -time.Hour, 365 * 24 * time.Hour, 0} {
		if err := stepClock(t.Context(), server, clocks, 1, ahead); err != nil {
			t.Fatal(err)
		}
		// Each reap that is due finds the step or comes after it.
		if err := sh.exec(sh.sql("SELECT {s}.reap(0), pg_sleep(0.3), {s}.reap(0)")); err != nil {
			t.Fatal(err)
		}
		c.progress(fmt.Sprintf("with the clock %v ahead", ahead))
	}
	c.finish()
	living, dead := opened(t, sh.link("living")), opened(t, sh.link("dead"))
	create(t, dead, "/dead", backend.Ephemeral)
	sh.link("dead").Partition()
	clocks.Set(t, 1, -time.Hour)
	gone(t, living, "/dead")
}

// A session whose margin is shorter than the time between two reaps ends, and so do the others.
func TestExpiry_AShortMarginKeepsNoSessionAlive(t *testing.T) {
	t.Parallel()
	server := shared.Get(t)
	s := newService(t, server.Addr(), postgres.Options{SessionTimeout: 4 * time.Second})
	living, long := opened(t, s.link("living")), opened(t, s.link("long"))
	create(t, long, "/long", backend.Ephemeral)
	// Only a row: on a busy machine the client of such a session loses it before it has a node.
	err := s.exec(fmt.Sprintf(`DO $$ BEGIN
		PERFORM %[1]s.open(7, 100, 10, false);
		PERFORM %[1]s.commit(7, 1, false, '{1}', '{1}', '{/short}', '{/}', '{NULL}', '{1}', '{-1}');
	END $$`, s.opts.Schema))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := living.Exists(t.Context(), "/short", nil); err != nil {
		t.Fatal(err)
	}
	s.link("long").Partition()
	gone(t, living, "/short")
	gone(t, living, "/long")
}

// No session ends before its timeout has passed since its latest renewal, and other sessions end it soon afterwards.
func TestExpiry_NotBeforeTheTimeout(t *testing.T) {
	t.Parallel()
	s := newService(t, shared.Get(t).Addr(), postgres.Options{SessionTimeout: 3 * time.Second})
	living, dead := opened(t, s.link("living")), opened(t, s.link("dead"))
	create(t, dead, "/dead", backend.Ephemeral)
	s.link("dead").Partition()
	dead.Close() // so that it does not come back
	// The row is renewed no more. It keeps its last time until the session ends, which its node shows.
	if err := s.exec(fmt.Sprintf("CREATE TABLE %[1]s.last AS SELECT expires FROM %[1]s.session WHERE id = %[2]d", s.opts.Schema, dead.ID())); err != nil {
		t.Fatal(err)
	}
	gone(t, living, "/dead")
	if err := s.exec(fmt.Sprintf("DO $$ BEGIN ASSERT (SELECT count(*) = 1 AND bool_and(expires <= clock_timestamp()) FROM %s.last), 'too early'; END $$", s.opts.Schema)); err != nil {
		t.Error(err)
	}
}

// A session renews its lease also where LossMargin leaves less of the timeout than an eighth.
func TestExpiry_ALongMarginLeavesTimeToRenew(t *testing.T) {
	t.Parallel()
	s := newService(t, shared.Get(t).Addr(), postgres.Options{SessionTimeout: 40 * time.Second, LossMargin: 36 * time.Second})
	session := opened(t, s.link("a"))
	if err := s.exec(fmt.Sprintf("CREATE TABLE %[1]s.first AS SELECT expires FROM %[1]s.session", s.opts.Schema)); err != nil {
		t.Fatal(err)
	}
	for {
		err := s.exec(fmt.Sprintf("DO $$ BEGIN ASSERT (SELECT s.expires > f.expires FROM %[1]s.session s, %[1]s.first f), 'not yet'; END $$", s.opts.Schema))
		if err == nil {
			break
		}
		if session.Err() != nil || !strings.Contains(err.Error(), "not yet") {
			t.Fatalf("%v, the session %v", err, session.Err())
		}
		time.Sleep(20 * time.Millisecond) // nothing signals a renewal
	}
}
