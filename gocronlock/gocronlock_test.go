package gocronlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/coordtest"
	"github.com/go-coord/coord/gocronlock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	_ gocron.Locker  = (*gocronlock.Locker)(nil)
	_ gocron.Elector = (*gocronlock.Elector)(nil)
)

// schedule starts a scheduler with one job, "report", at each full minute.
func schedule(t *testing.T, o gocron.SchedulerOption, job any, more ...gocron.JobOption) gocron.Scheduler {
	t.Helper()
	s, err := gocron.NewScheduler(o, gocron.WithLocation(time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.NewJob(gocron.CronJob("* * * * *", false), gocron.NewTask(job), append(more, gocron.WithName("report"))...); err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown() })
	return s
}

// minutes lets n planned times pass, and returns between two of them.
func minutes(n int) {
	time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Duration(n)*time.Minute + 30*time.Second)))
	synctest.Wait()
}

func TestLocker_OneProcessRunsAJob(t *testing.T) {
	coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
		runs := make(map[string]int)
		record := make(chan string, 100)
		for _, name := range []string{"a", "b", "c"} {
			locker := gocronlock.NewLocker(s.Client(name, nil), "/jobs", &gocronlock.Options{ID: name})
			schedule(t, gocron.WithDistributedLocker(locker), func() { record <- name })
		}
		minutes(10)
		close(record)
		total := 0
		for name := range record {
			runs[name]++
			total++
		}
		if total != 10 {
			t.Errorf("10 planned times had %d runs: %v", total, runs)
		}
	})
}

// A clock that is half a second late would run a short job again: the lock is held for a second.
func TestLocker_AShortRunHoldsItsLockForASecond(t *testing.T) {
	coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
		for name, c := range map[string]struct {
			o    *gocronlock.Options
			late time.Duration
			free bool
		}{
			"held":    {nil, 900 * time.Millisecond, false},
			"free":    {nil, 1100 * time.Millisecond, true},
			"longer":  {&gocronlock.Options{AtLeast: time.Minute}, 59 * time.Second, false},
			"minimum": {&gocronlock.Options{AtLeast: -1}, time.Millisecond, true},
		} {
			a, b := gocronlock.NewLocker(s.Client("a", nil), "/"+name, c.o), gocronlock.NewLocker(s.Client("b", nil), "/"+name, c.o)
			lock, err := a.Lock(t.Context(), "job")
			if err != nil {
				t.Fatal(err)
			}
			unlocked := make(chan error, 1)
			go func() { unlocked <- lock.Unlock(t.Context()) }()
			time.Sleep(c.late)
			late, err := b.Lock(t.Context(), "job")
			if (err == nil) != c.free || err != nil && !errors.Is(err, coord.ErrLocked) {
				t.Errorf("%s: after %v the error is %v", name, c.late, err)
			}
			if err := <-unlocked; err != nil {
				t.Error(err)
			}
			if late != nil {
				late.Unlock(canceled())
			}
		}
	})
}

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// The context of Unlock has ended when gocron stops, and the lock is released in spite of it.
func TestLocker_AStoppedSchedulerReleasesItsLock(t *testing.T) {
	coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
		c := s.Client("a", nil)
		began := make(chan struct{})
		sched := schedule(t, gocron.WithDistributedLocker(gocronlock.NewLocker(c, "/jobs", nil)), func(ctx context.Context) {
			close(began)
			<-ctx.Done() // gocron ends it first, and then waits for the job, without letting fake time pass
		})
		<-began
		if err := sched.StopJobs(); err != nil {
			t.Fatal(err)
		}
		h, err := coord.NewMutex(s.Client("b", nil), "/jobs/report", nil).TryLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		h.Release()
	})
}

// A run that has lost its lock continues, and learns of it by its hold only. Another process runs the job meanwhile. The
// process that has lost the lock begins no other run before that one has ended.
func TestLocker_ALostLock(t *testing.T) {
	coordtest.Each(t, &coordtest.Options{SessionTimeout: 3 * time.Second}, func(t *testing.T, s *coordtest.Service) {
		client := s.Client("a", nil)
		locker := gocronlock.NewLocker(client, "/jobs", &gocronlock.Options{AtLeast: -1})
		lock, err := locker.Lock(t.Context(), "report")
		if err != nil {
			t.Fatal(err)
		}
		h := locker.Hold("report")
		if h == nil || h.Err() != nil {
			t.Fatalf("the hold of the run is %v", h)
		}
		s.Link("a").Expire()
		other := gocronlock.NewLocker(s.Client("b", nil), "/jobs", &gocronlock.Options{AtLeast: -1})
		second, err := other.Lock(t.Context(), "report")
		if err != nil {
			t.Fatal(err)
		}
		if now := other.Hold("report"); now.Token() <= h.Token() {
			t.Errorf("the token %d follows %d", now.Token(), h.Token())
		}
		if err := second.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-h.Done()
		if _, err := coord.NewTxn(client).Under(h.Guard()).Add(coord.NewValue[string](client, "/v", nil).SetOp("")).Commit(t.Context()); !errors.Is(err, coord.ErrFenced) {
			t.Errorf("a write under the lost lock: %v", err)
		}
		if _, err := locker.Lock(t.Context(), "report"); !errors.Is(err, coord.ErrLocked) {
			t.Errorf("a run beside the one that has lost its lock: %v", err)
		}
		if err := lock.Unlock(t.Context()); !errors.Is(err, coord.ErrLost) {
			t.Errorf("Unlock: %v", err)
		}
		if locker.Hold("report") != nil {
			t.Error("an ended run has a hold")
		}
		third, err := locker.Lock(t.Context(), "report")
		if err != nil {
			t.Fatal(err)
		}
		if err := third.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// The names of functions contain characters that a path cannot have.
func TestLocker_NamesAreOneSegment(t *testing.T) {
	coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
		locker := gocronlock.NewLocker(s.Client("a", nil), "/jobs", nil)
		for name, good := range map[string]bool{
			"main.job": true, "example.com/a/b.(*T).run-fm": true, "50 % more é": true, "%2F": true, "": false, "..": false,
		} {
			lock, err := locker.Lock(t.Context(), name)
			if good != (err == nil) || !good && !errors.Is(err, coord.ErrBadPath) {
				t.Errorf("%q: %v", name, err)
			}
			if err == nil {
				lock.Unlock(canceled())
			}
			if locker.Hold(name) != nil {
				t.Errorf("%q: has a hold", name)
			}
		}
	})
}

// An outage makes a run late. It does not pile up runs.
func TestLocker_WithoutContactRunsWait(t *testing.T) {
	coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
		record := make(chan time.Time, 100)
		locker := gocronlock.NewLocker(s.Client("a", nil), "/jobs", nil)
		schedule(t, gocron.WithDistributedLocker(locker), func() { record <- time.Now() })
		minutes(1)
		s.Link("a").Refuse(true)
		minutes(5)
		s.Link("a").Refuse(false)
		minutes(3)
		if n := len(record); n != 1+1+3 {
			t.Errorf("%d runs, want one before, a late one and three after", n)
		}
	})
}

// While a run waits for contact, the next one of this process is refused at once.
func TestLocker_OneRunWaitsForContact(t *testing.T) {
	coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
		locker := gocronlock.NewLocker(s.Client("a", nil), "/jobs", nil)
		s.Link("a").Refuse(true)
		time.Sleep(s.SessionTimeout())
		done := make(chan error, 1)
		go func() {
			lock, err := locker.Lock(t.Context(), "report")
			if err == nil {
				err = lock.Unlock(canceled())
			}
			done <- err
		}()
		synctest.Wait()
		began := time.Now()
		if _, err := locker.Lock(t.Context(), "report"); !errors.Is(err, coord.ErrLocked) || time.Since(began) > 0 {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		s.Link("a").Refuse(false)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A closed client ends the lock of a run, and refuses others.
func TestLocker_AClosedClient(t *testing.T) {
	coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
		c := s.Client("a", nil)
		locker := gocronlock.NewLocker(c, "/jobs", nil)
		lock, err := locker.Lock(t.Context(), "report")
		if err != nil {
			t.Fatal(err)
		}
		h := locker.Hold("report")
		c.Close()
		if !errors.Is(h.Err(), coord.ErrClosed) {
			t.Errorf("the hold: %v", h.Err())
		}
		if err := lock.Unlock(t.Context()); !errors.Is(err, coord.ErrLost) {
			t.Errorf("Unlock: %v", err)
		}
		if _, err := locker.Lock(t.Context(), "report"); !errors.Is(err, coord.ErrClosed) {
			t.Errorf("Lock: %v", err)
		}
	})
}

// A job that panics or ends its goroutine releases its lock.
func TestLocker_APanicReleasesTheLock(t *testing.T) {
	coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
		locker := gocronlock.NewLocker(s.Client("a", nil), "/jobs", nil)
		panics := 0
		schedule(t, gocron.WithDistributedLocker(locker), func() { panic("bad job") },
			gocron.WithEventListeners(gocron.AfterJobRunsWithPanic(func(_ uuid.UUID, _ string, _ any) { panics++ })))
		minutes(3)
		if panics != 3 || locker.Hold("report") != nil {
			t.Errorf("%d panics, hold %v", panics, locker.Hold("report"))
		}
	})
}

func TestElector_TheLeaderRunsJobs(t *testing.T) {
	coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
		record := make(chan string, 100)
		took := func() (runs []string) {
			for {
				select {
				case r := <-record:
					runs = append(runs, r)
				default:
					return runs
				}
			}
		}
		stop := make(map[string]func())
		for _, name := range []string{"a", "b"} {
			e := gocronlock.NewElector(coord.NewElection(s.Client(name, nil), "/leader", &coord.ElectionOptions{ID: name}))
			if e.IsLeader(t.Context()) == nil || e.Term() != nil {
				t.Error("leads without an election")
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- e.Run(ctx) }()
			stop[name] = func() {
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
				if e.IsLeader(t.Context()) == nil {
					t.Error("leads after Run")
				}
			}
			synctest.Wait()
			schedule(t, gocron.WithDistributedElector(e), func() { record <- fmt.Sprint(name, " ", e.Term() != nil) })
		}
		minutes(2)
		if got := fmt.Sprint(took()); got != "[a true a true]" {
			t.Errorf("runs %s", got)
		}
		s.Link("a").Expire() // a is a candidate again, behind b
		minutes(2)
		if got := fmt.Sprint(took()); got != "[b true b true]" {
			t.Errorf("runs %s", got)
		}
		stop["b"]()
		minutes(2)
		if got := fmt.Sprint(took()); got != "[a true a true]" {
			t.Errorf("runs %s", got)
		}
		stop["a"]()
		minutes(2)
		if got := took(); len(got) > 0 {
			t.Errorf("runs %s without a leader", got)
		}
	})
}

// IsLeader is false before the next leader is elected, although the process learns nothing of the service, and a job
// that has begun learns of the loss by its term.
func TestElector_ALostTerm(t *testing.T) {
	coordtest.Each(t, &coordtest.Options{SessionTimeout: 3 * time.Second}, func(t *testing.T, s *coordtest.Service) {
		run := func(name string) *gocronlock.Elector {
			e := gocronlock.NewElector(coord.NewElection(s.Client(name, nil), "/leader", nil))
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- e.Run(ctx) }()
			t.Cleanup(func() {
				cancel()
				<-done
			})
			return e
		}
		a := run("a")
		s.Eventually("a leads", func() bool { return a.Term() != nil })
		b := run("b")
		term := a.Term()
		ctx := term.Context(t.Context())
		s.Link("a").Blackhole(true)
		s.Eventually("b leads", func() bool {
			led := a.IsLeader(t.Context()) == nil
			leads := b.IsLeader(t.Context()) == nil
			if leads && a.IsLeader(t.Context()) == nil {
				t.Error("two leaders")
			}
			return leads && !led
		})
		if !errors.Is(context.Cause(ctx), coord.ErrLost) {
			t.Errorf("the context of the job: %v", context.Cause(ctx))
		}
		if b.Term().Token() <= term.Token() {
			t.Errorf("the token %d follows %d", b.Term().Token(), term.Token())
		}
	})
}

// A candidate that cannot campaign tells its owner.
func TestElector_AClosedClient(t *testing.T) {
	coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
		c := s.Client("a", nil)
		e := gocronlock.NewElector(coord.NewElection(c, "/leader", nil))
		done := make(chan error, 1)
		go func() { done <- e.Run(t.Context()) }()
		synctest.Wait()
		if err := e.IsLeader(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.Close()
		if err := e.IsLeader(t.Context()); err == nil {
			t.Error("leads")
		}
		if err := <-done; !errors.Is(err, coord.ErrClosed) {
			t.Errorf("Run: %v", err)
		}
	})
}

// A Lock that fails leaves the name free for the next run of this process.
func TestLocker_ALockThatFails(t *testing.T) {
	coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
		a, b := gocronlock.NewLocker(s.Client("a", nil), "/jobs", nil), gocronlock.NewLocker(s.Client("b", nil), "/jobs", nil)
		lock, err := b.Lock(t.Context(), "report")
		if err != nil {
			t.Fatal(err)
		}
		for _, ctx := range []context.Context{t.Context(), canceled()} {
			if _, err := a.Lock(ctx, "report"); !errors.Is(err, coord.ErrLocked) && !errors.Is(err, context.Canceled) {
				t.Errorf("error %v", err)
			}
		}
		lock.Unlock(canceled())
		lock, err = a.Lock(t.Context(), "report")
		if err != nil {
			t.Fatalf("after it: %v", err)
		}
		lock.Unlock(canceled())
	})
}

// A second Unlock of a run leaves the lock of the next run alone.
func TestLocker_UnlockTwice(t *testing.T) {
	coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
		locker := gocronlock.NewLocker(s.Client("a", nil), "/jobs", nil)
		first, err := locker.Lock(t.Context(), "report")
		if err != nil {
			t.Fatal(err)
		}
		if err := first.Unlock(canceled()); err != nil {
			t.Fatal(err)
		}
		second, err := locker.Lock(t.Context(), "report")
		if err != nil {
			t.Fatal(err)
		}
		first.Unlock(canceled())
		for range 2 {
			if h := locker.Hold("report"); h == nil || h.Err() != nil {
				t.Errorf("the hold of the next run is %v", h)
			}
			if _, err := locker.Lock(t.Context(), "report"); !errors.Is(err, coord.ErrLocked) {
				t.Errorf("a third run beside it: %v", err)
			}
		}
		if err := second.Unlock(canceled()); err != nil {
			t.Error(err)
		}
	})
}

// paused is a service for a client whose process was paused for longer than its lease: the first session is lost when the
// client compares the lease with the clock, and nothing else tells of it.
type paused struct {
	backend.Backend
	opened, over atomic.Bool
}

type pausedSession struct {
	backend.Session
	b    *paused
	once sync.Once
	done chan struct{}
}

func (b *paused) Open(ctx context.Context) (backend.Session, error) {
	s, err := b.Backend.Open(ctx)
	if err != nil || b.opened.Swap(true) {
		return s, err
	}
	return &pausedSession{Session: s, b: b, done: make(chan struct{})}, nil
}

func (s *pausedSession) Err() error {
	if s.b.over.Load() {
		s.once.Do(func() { close(s.done) })
		return &backend.Error{Op: "session", Err: backend.ErrSessionLost}
	}
	return s.Session.Err()
}

func (s *pausedSession) Done() <-chan struct{} { return s.done }

// A process that resumes after its lease does not begin a job as the leader.
func TestElector_AfterAPause(t *testing.T) {
	coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
		b := &paused{Backend: s.Link("a")}
		c, err := coord.Open(t.Context(), b, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		e := gocronlock.NewElector(coord.NewElection(c, "/leader", nil))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- e.Run(ctx) }()
		synctest.Wait()
		if err := e.IsLeader(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.over.Store(true)
		if err := e.IsLeader(t.Context()); err == nil {
			t.Error("it leads")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Jobs that last longer than their interval, in each way in which gocron starts them, run in one process at a time. A loss ends
// the run that works under its hold, and an outage does not keep later ones from running.
func TestLocker_LongJobs(t *testing.T) {
	for name, c := range map[string]struct {
		of  []gocron.SchedulerOption
		job []gocron.JobOption
	}{
		"plain":             {nil, nil},
		"singleton, leaves": {nil, []gocron.JobOption{gocron.WithSingletonMode(gocron.LimitModeReschedule)}},
		"singleton, queues": {nil, []gocron.JobOption{gocron.WithSingletonMode(gocron.LimitModeWait)}},
		"one job at a time": {[]gocron.SchedulerOption{gocron.WithLimitConcurrentJobs(1, gocron.LimitModeWait)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
				var running, runs, lost atomic.Int32
				for _, process := range []string{"a", "b"} {
					locker := gocronlock.NewLocker(s.Client(process, nil), "/jobs", nil)
					scheduler, err := gocron.NewScheduler(append(c.of, gocron.WithDistributedLocker(locker), gocron.WithLocation(time.UTC))...)
					if err != nil {
						t.Fatal(err)
					}
					defer scheduler.Shutdown()
					job := gocron.NewTask(func(ctx context.Context) {
						if n := running.Add(1); n > 1 {
							t.Errorf("%d runs at a time", n)
						}
						defer running.Add(-1)
						runs.Add(1)
						held := locker.Hold("report").Context(ctx)
						select {
						case <-time.After(150 * time.Second):
						case <-held.Done():
							if errors.Is(context.Cause(held), coord.ErrLost) {
								lost.Add(1)
							}
						}
					})
					if _, err := scheduler.NewJob(gocron.CronJob("* * * * *", false), job, append(c.job, gocron.WithName("report"))...); err != nil {
						t.Fatal(err)
					}
					scheduler.Start()
				}
				minutes(10)
				before := runs.Load()
				for _, process := range []string{"a", "b"} {
					s.Link(process).Expire()
				}
				minutes(5)
				after := runs.Load()
				for _, on := range []bool{true, false} {
					for _, process := range []string{"a", "b"} {
						s.Link(process).Refuse(on)
					}
					minutes(5)
				}
				if before < 3 || after <= before || runs.Load() <= after || lost.Load() == 0 {
					t.Errorf("%d runs, %d after the loss, %d after the outage, %d lost", before, after, runs.Load(), lost.Load())
				}
			})
		})
	}
}
