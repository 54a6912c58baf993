package moving

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// mortal is the lock of a process of client-go: after its death none of its requests gets through.
type mortal struct {
	resourcelock.Interface
	alive context.Context
}

func (m mortal) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	if m.alive.Err() != nil {
		<-ctx.Done()
		return nil, nil, ctx.Err()
	}
	return m.Interface.Get(ctx)
}

func (m mortal) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	if m.alive.Err() != nil {
		<-ctx.Done()
		return ctx.Err()
	}
	return m.Interface.Update(ctx, r)
}

// The time from the death of client-go's leader to the begin of the next one, a hundred deaths, on the fake clientset. LeaseDuration is 10 s, as the
// session timeout of TestGuard_TimesOfTheGrants in cmd/coordctl, with a RenewDeadline of 7 s and the default RetryPeriod of 2 s. The time is
// fake: only the election's own delays count.
//
//	go test -v -run TestClientGo_TimesOfTheLeadersAfterACrash .
func TestClientGo_TimesOfTheLeadersAfterACrash(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const times, lease = 100, 10 * time.Second
		var took []time.Duration
		for i := range times {
			took = append(took, afterACrash(t, lease, time.Duration(i)*lease/3/times))
		}
		slices.Sort(took)
		t.Logf("figure: client-go, crash: median %.1f s, maximum %.1f s", ((took[(times-1)/2] + took[times/2]) / 2).Seconds(), took[times-1].Seconds())
		if took[0] < 7*time.Second || took[times-1] > 20*time.Second {
			t.Errorf("%v", took)
		}
	})
}

// afterACrash returns how long after the death of a leader, which has led for a time, the next one begins.
func afterACrash(t *testing.T, lease, led time.Duration) time.Duration {
	var electors sync.WaitGroup
	defer electors.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cs := fake.NewClientset()
	begin := func(id string, alive context.Context) (leads chan struct{}) {
		leads = make(chan struct{})
		e, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: mortal{&resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Name: "report", Namespace: "default"},
				Client:     cs.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: id},
			}, alive},
			LeaseDuration: lease, RenewDeadline: 7 * time.Second, RetryPeriod: 2 * time.Second,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(context.Context) { close(leads) },
				OnStoppedLeading: func() {},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		electors.Go(func() { e.Run(ctx) })
		return leads
	}
	alive, die := context.WithCancel(ctx)
	<-begin("a", alive)
	next := begin("b", ctx)
	time.Sleep(led)
	died := time.Now()
	die()
	<-next
	return time.Since(died)
}
