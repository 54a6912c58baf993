package oteltrace

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	coordtrace "github.com/go-coord/coord/trace"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// present returns the points of the up-down counters.
func (x *scene) present() []string {
	return slices.DeleteFunc(x.points(), func(s string) bool {
		return !strings.HasPrefix(s, "coord.sessions") && !strings.HasPrefix(s, "coord.waiters") && !strings.HasPrefix(s, "coord.holds")
	})
}

func TestTheCallsThatWaitAreCountedOnce(t *testing.T) {
	play(t, Options{}, sdktrace.NeverSample(), func(x *scene) {
		taken := x.lock(x.t.Context(), x.other)
		ctx, cancel := context.WithCancel(x.t.Context())
		ended := make(chan error, 3)
		for range 3 { // one waits in the queue of the service, two behind it
			go func() {
				ended <- coord.NewMutex(x.c, "/l", nil).Do(ctx, func(context.Context, *coord.Hold) error { return nil })
			}()
		}
		want := func(waiters, holds string) {
			t.Helper()
			synctest.Wait()
			list := []string{"coord.sessions{phase=connected} 1", "coord.waiters{op=lock,path=/app/l,recipe=mutex} " + waiters}
			if holds != "" {
				list = append([]string{"coord.holds{path=/app/l,recipe=mutex} " + holds}, list...)
			}
			x.want(x.present(), list...)
		}
		want("3", "")
		s, err := x.c.Session(ctx)
		if err != nil {
			t.Fatal(err)
		}
		x.st.Link("a").Expire(s.ID()) // each begins to wait again
		synctest.Wait()
		x.want(x.present(),
			"coord.sessions{phase=connected} 1",
			"coord.sessions{phase=lost} 0",
			"coord.waiters{op=lock,path=/app/l,recipe=mutex} 3")
		taken.Release()
		for range 3 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		cancel()
		x.want(x.present(),
			"coord.holds{path=/app/l,recipe=mutex} 0",
			"coord.sessions{phase=connected} 1",
			"coord.sessions{phase=lost} 0",
			"coord.waiters{op=lock,path=/app/l,recipe=mutex} 0")
	})
}

// The events that end them may be among those that are missing.
func TestDroppedEventsLeaveNoHoldAndNoWaitCounted(t *testing.T) {
	play(t, Options{}, sdktrace.NeverSample(), func(x *scene) {
		taken := x.lock(x.t.Context(), x.c)
		ended := make(chan error, 1)
		go func() {
			ended <- coord.NewMutex(x.c, "/l", nil).Do(x.t.Context(), func(context.Context, *coord.Hold) error { return nil })
		}()
		x.want(x.present(),
			"coord.holds{path=/app/l,recipe=mutex} 1",
			"coord.sessions{phase=connected} 1",
			"coord.waiters{op=lock,path=/app/l,recipe=mutex} 1")
		x.adapter.trace(x.t.Context(), coordtrace.EventsDropped{Events: 3})
		none := []string{
			"coord.holds{path=/app/l,recipe=mutex} 0",
			"coord.sessions{phase=connected} 1",
			"coord.waiters{op=lock,path=/app/l,recipe=mutex} 0",
		}
		x.want(x.present(), none...)
		taken.Release()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		x.want(x.present(), none...)
	})
}

func TestEveryClientIsCountedInThePhaseOfItsSession(t *testing.T) {
	play(t, Options{}, sdktrace.NeverSample(), func(x *scene) {
		second := x.open("c", x.adapter.trace)
		x.want(x.present(), "coord.sessions{phase=connected} 2")
		x.st.Link("a").Partition()
		time.Sleep(2 * time.Second)
		want := func(connected, lost, suspended string) {
			t.Helper()
			x.want(x.present(),
				"coord.sessions{phase=connected} "+connected,
				"coord.sessions{phase=lost} "+lost,
				"coord.sessions{phase=suspended} "+suspended)
		}
		x.want(x.present(), "coord.sessions{phase=connected} 1", "coord.sessions{phase=suspended} 1")
		time.Sleep(10 * time.Second)
		want("1", "1", "0")
		third := x.open("d", x.adapter.trace) // is not the next session of the client that has lost its own
		want("2", "1", "0")
		x.st.Link("a").Heal()
		time.Sleep(time.Minute)
		want("3", "0", "0")
		second.Close()
		third.Close()
		want("1", "0", "0")
		x.st.Link("a").Partition()
		time.Sleep(15 * time.Second)
		want("0", "1", "0")
		x.c.Close()
		want("0", "0", "0")
	})
}

// The session that follows a lost one takes the place of any session that is lost, so that the
// place of a client can be another's when the client is heard of again.
func TestAClientThatStaysLostIsCountedOnce(t *testing.T) {
	play(t, Options{}, sdktrace.NeverSample(), func(x *scene) {
		session := int64(1000)
		told := func(phase string, id int64, again bool) {
			x.adapter.trace(t.Context(), coordtrace.StateChanged{Phase: phase, Session: id, Again: again})
		}
		for range 20 {
			lost := session + 1
			for range 3 {
				session++
				told("connected", session, false)
				told("lost", session, false)
			}
			for range 2 {
				session++
				told("connected", session, true)
				defer told("closed", session, false)
			}
			told("lost", lost, false) // an attempt to open the next one has failed
			if now := x.present(); !slices.Contains(now, "coord.sessions{phase=lost} 1") {
				t.Fatalf("one client of three is still lost: %q", now)
			}
			told("closed", lost, false)
			if now := x.present(); !slices.Contains(now, "coord.sessions{phase=lost} 0") {
				t.Fatalf("the client that was lost is closed: %q", now)
			}
		}
	})
}

func TestTheShardsOfMembersAreCounted(t *testing.T) {
	play(t, Options{}, sdktrace.NeverSample(), func(x *scene) {
		ask := make(chan struct{}) // the owners give a shard up when it is closed
		member := func(c *coord.Client, id string) (leave func()) {
			ctx, cancel := context.WithCancel(x.t.Context())
			left := make(chan error, 1)
			go func() {
				left <- coord.NewShards(c, "/s", 10, &coord.ShardsOptions{ID: id}).Run(ctx, func(ctx context.Context, sh *coord.Shard) error {
					<-ctx.Done()
					<-ask
					return nil
				})
			}()
			synctest.Wait()
			return func() {
				cancel()
				<-left
			}
		}
		want := func(assigned, owned, moving, gained, lost string) {
			t.Helper()
			list := slices.DeleteFunc(x.points(), func(s string) bool { return !strings.HasPrefix(s, "coord.shards") })
			want := []string{
				"coord.shards.assigned{path=/app/s,recipe=shards} " + assigned,
				"coord.shards.moves{outcome=gained,path=/app/s,recipe=shards} " + gained,
				"coord.shards.moves{outcome=lost,path=/app/s,recipe=shards} " + lost,
				"coord.shards.moving{path=/app/s,recipe=shards} " + moving,
				"coord.shards.owned{path=/app/s,recipe=shards} " + owned,
			}
			x.want(list, want...)
		}
		leave := member(x.c, "me")
		want("10", "10", "0", "10", "0")
		other := member(x.other, "other")
		want("5", "10", "5", "10", "5")
		// The totals of the next event are right whatever was dropped.
		x.adapter.trace(x.t.Context(), coordtrace.EventsDropped{Events: 3})
		want("5", "10", "5", "10", "5")
		close(ask)
		want("5", "5", "0", "10", "5")
		second := member(x.c, "second")
		leave()
		second()
		other()
		synctest.Wait()
		for _, s := range x.points() {
			if strings.HasPrefix(s, "coord.shards.") && !strings.Contains(s, "moves") && !strings.HasSuffix(s, " 0") {
				t.Errorf("after the last member has left: %s", s)
			}
		}
		if n := len(x.adapter.shards.members); n != 0 {
			t.Errorf("%d members are kept", n)
		}
	})
}

// The numbers of a site that is taken over by another client are added, and events that are lost are made
// good by the next one.
func TestMetrics_DecisionsThatAreNotCarriedOut(t *testing.T) {
	play(t, Options{}, sdktrace.NeverSample(), func(x *scene) {
		fail := errors.New("disk full")
		var mend atomic.Bool
		unblock := make(chan struct{})
		yes := func(context.Context, coord.Branch[string]) error { return nil }
		ctx, stop := context.WithCancel(x.t.Context())
		served := make(chan error)
		go func() {
			served <- coord.NewParticipant(x.c, "/tx", "s", coord.Handler[string]{Prepare: yes, Abort: yes,
				Commit: func(_ context.Context, tx coord.Branch[string]) error {
					if tx.Payload == "hangs" {
						<-unblock
					} else if !mend.Load() {
						return fail
					}
					return nil
				},
			}).Serve(ctx)
		}()
		synctest.Wait()
		want := func(undone, failing string) {
			t.Helper()
			synctest.Wait()
			list := slices.DeleteFunc(x.points(), func(s string) bool {
				return !strings.HasPrefix(s, "coord.twophase.undone") && !strings.HasPrefix(s, "coord.twophase.failing")
			})
			x.want(list, "coord.twophase.failing{path=/app/tx,recipe=twophase} "+failing, "coord.twophase.undone{path=/app/tx,recipe=twophase} "+undone)
		}
		co := coord.NewCoordinator[string](x.c, "/tx", nil)
		for _, payload := range []string{"hangs", "fails"} {
			if _, err := co.Propose(ctx, coord.Proposal[string]{ID: payload, Sites: []string{"s"}, Payload: payload}); err != nil {
				t.Fatal(err)
			}
		}
		want("2", "1")
		x.adapter.trace(x.t.Context(), coordtrace.EventsDropped{Events: 3})
		want("2", "1")
		mend.Store(true)
		time.Sleep(2 * time.Minute)
		want("1", "0")
		close(unblock)
		want("0", "0")
		if n := len(x.adapter.undone.sites); n != 0 {
			t.Errorf("%d sites are kept", n)
		}
		stop()
		<-served
	})
}
