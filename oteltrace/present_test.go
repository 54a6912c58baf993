package oteltrace

import (
	"context"
	"slices"
	"strings"
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
