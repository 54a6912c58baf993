// Package moving runs the code of docs/moving.md for client-go and for Redis. It is a module of its
// own, which only ./test.sh -long builds: Kubernetes takes minutes to compile.
package moving

import (
	"context"
	"errors"
	"log"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/memory"
)

// The four functions stand on the page as they are here, which internal/readme checks.

func leadBefore(ctx context.Context, cs kubernetes.Interface, id string, lead func(context.Context)) {
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Name: "report", Namespace: "default"},
		Client:     cs.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: id},
	}
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock:            lock,
		ReleaseOnCancel: true, // right only if lead has returned by then
		LeaseDuration:   15 * time.Second,
		RenewDeadline:   10 * time.Second,
		RetryPeriod:     2 * time.Second,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: lead,
			OnStoppedLeading: func() { os.Exit(1) }, // lead may still run
			OnNewLeader:      func(id string) { log.Print("leader: ", id) },
		},
	})
}

func leadAfter(ctx context.Context, c *coord.Client, id string, work func(context.Context)) error {
	election := coord.NewElection(c, "/report", &coord.ElectionOptions{ID: id})
	go func() {
		for leader := range election.WatchLeader(ctx) {
			switch {
			case leader.Err != nil: // the last element
				log.Print("the leader is not followed any more: ", leader.Err)
			case leader.Vacant():
				log.Print("no leader")
			default:
				log.Print("leader: ", leader.ID)
			}
		}
	}()
	return election.Run(ctx, func(ctx context.Context, term *coord.Term) error {
		work(ctx) // Run waits for it, and resigns; if the term was lost, it campaigns again
		return nil
	})
}

func lockBefore(ctx context.Context, rs *redsync.Redsync, build func(context.Context) error) error {
	m := rs.NewMutex("locks/report", redsync.WithExpiry(10*time.Second))
	if err := m.LockContext(ctx); err != nil { // polls, and gives up after 32 tries
		return err
	}
	defer m.UnlockContext(context.WithoutCancel(ctx))
	work, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		for {
			select {
			case <-work.Done():
				return
			case <-time.After(3 * time.Second):
				if ok, err := m.ExtendContext(work); !ok || err != nil {
					cancel() // perhaps after the lock has expired
					return
				}
			}
		}
	}()
	return build(work)
}

func lockAfter(ctx context.Context, c *coord.Client, build func(context.Context, *coord.Hold) error) error {
	return coord.NewMutex(c, "/locks/report", nil).Do(ctx, build)
}

func open(t *testing.T) *coord.Client {
	t.Helper()
	c, err := coord.Open(t.Context(), memory.New(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestMovingFromClientGo(t *testing.T) {
	t.Parallel()
	const child = "COORD_MOVING_LEADS" // leadBefore ends its process
	if os.Getenv(child) != "" {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		leadBefore(ctx, fake.NewClientset(), "node-a", func(context.Context) {
			log.Print("leading")
			cancel()
		})
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), child+"=1")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), "leading\n") || strings.Contains(string(out), "FAIL") {
		t.Errorf("before: %v\n%s", err, out)
	}

	led := 0
	err = leadAfter(t.Context(), open(t), "node-a", func(ctx context.Context) {
		if ctx.Err() == nil {
			led++
		}
	})
	if err != nil || led != 1 {
		t.Errorf("after: led %d times, %v", led, err)
	}
}

func TestMovingFromRedis(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	const key = "locks/report"
	err := lockBefore(t.Context(), redsync.New(goredis.NewPool(client)), func(ctx context.Context) error {
		server.FastForward(6 * time.Second)
		for range time.Tick(50 * time.Millisecond) {
			if ctx.Err() != nil {
				return errors.New("not extended")
			}
			if server.TTL(key) > 5*time.Second {
				break
			}
		}
		server.Del(key) // a failover
		<-ctx.Done()
		return nil
	})
	if err != nil {
		t.Errorf("before: %v", err)
	}

	c := open(t)
	done := errors.New("done")
	err = lockAfter(t.Context(), c, func(ctx context.Context, h *coord.Hold) error {
		if h.Token() == 0 || ctx.Err() != nil {
			return errors.New("not held")
		}
		if _, err := coord.NewMutex(c, "/locks/report", nil).TryLock(ctx); !errors.Is(err, coord.ErrLocked) {
			t.Errorf("a second TryLock: %v", err)
		}
		return done
	})
	if !errors.Is(err, done) {
		t.Errorf("after: %v", err)
	}
}
