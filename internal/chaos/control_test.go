//go:build linux

package chaos

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
)

// A control keeps writing a node of its own without this library. While the control makes no progress, the servers are down: the time to elect a
// leader depends on the machine, and no recipe can be faster. If one of its acknowledged
// writes disappears, the servers are at fault.
type control struct {
	set  func(ctx context.Context) (version int32, zxid int64, err error)
	end  func()
	rec  *recorder
	stop context.CancelFunc
	wg   sync.WaitGroup
	kept acknowledged // for wg
}

// acknowledged is the latest acknowledged write by the only writer of a node.
type acknowledged struct {
	version int32
	zxid    int64
	back    string // how an acknowledged write was lost, if one was
}

// add records the next acknowledged write. A version that does not grow belongs to a tree
// that lacks an earlier write.
func (a *acknowledged) add(version int32, zxid int64) {
	if version <= a.version && a.back == "" {
		a.back = fmt.Sprintf("version %d with zxid %#x was acknowledged after version %d with zxid %#x", version, zxid, a.version, a.zxid)
	}
	a.version, a.zxid = version, zxid
}

const (
	controlPath  = "/control"
	controlWork  = "control"
	controlEvery = 20 * time.Millisecond
)

func startControl(t *testing.T, r *run, rec *recorder) *control {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := &control{rec: rec, stop: cancel}
	if r.other != nil {
		c.set, c.end = r.other.Write, func() {}
	} else {
		conn, _, err := zk.Connect(r.e.Addrs(), sessionTimeout, zk.WithLogger(silent{}))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Create(controlPath, nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
		c.end = conn.Close
		c.set = func(context.Context) (int32, int64, error) {
			stat, err := conn.Set(controlPath, nil, -1)
			if err != nil {
				return 0, 0, err
			}
			return stat.Version, stat.Mzxid, nil
		}
	}
	c.wg.Go(func() { c.write(ctx) })
	t.Cleanup(func() { c.close() })
	return c
}

type silent struct{}

func (silent) Printf(string, ...any) {}

func (c *control) write(ctx context.Context) {
	for tick := time.Tick(controlEvery); ; {
		about := c.rec.begin(event{Work: controlWork})
		if version, zxid, err := c.set(ctx); err == nil {
			c.kept.add(version, zxid)
			c.rec.end(about, "ok", nil)
		} else {
			c.rec.end(about, "unknown", err)
		}
		select {
		case <-tick:
		case <-ctx.Done():
			return
		}
	}
}

// close ends the control, and returns how the servers lost acknowledged writes, if they did.
// A second call does nothing.
func (c *control) close() (back string) {
	c.stop()
	c.end()
	c.wg.Wait()
	return c.kept.back
}

func TestALostAcknowledgedWriteIsDetected(t *testing.T) {
	var a acknowledged
	for v := range int32(5) {
		a.add(2*v+1, int64(v)) // every other write was not acknowledged
	}
	if a.back != "" {
		t.Error(a.back)
	}
	if a.add(9, 7); a.back == "" {
		t.Error("the same version twice: not detected")
	}
}
