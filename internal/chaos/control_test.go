//go:build linux

package chaos

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
)

// A control writes a node of its own all the time with the raw client, which knows
// nothing of this library. While it stands still, the servers do: how long they take
// to elect a leader depends on the machine, and no recipe can be quicker.
type control struct {
	conn *zk.Conn
	rec  *recorder
	stop context.CancelFunc
	wg   sync.WaitGroup
}

const (
	controlPath  = "/control"
	controlWork  = "control"
	controlEvery = 20 * time.Millisecond
)

func startControl(t *testing.T, addrs []string, rec *recorder) *control {
	t.Helper()
	conn, _, err := zk.Connect(addrs, sessionTimeout, zk.WithLogger(silent{}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Create(controlPath, nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	c := &control{conn: conn, rec: rec, stop: cancel}
	c.wg.Go(func() { c.write(ctx) })
	t.Cleanup(c.close)
	return c
}

type silent struct{}

func (silent) Printf(string, ...any) {}

func (c *control) write(ctx context.Context) {
	for tick := time.Tick(controlEvery); ; {
		about := c.rec.begin(event{Work: controlWork})
		if _, err := c.conn.Set(controlPath, nil, -1); err == nil {
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

// close ends the control. A second call does nothing.
func (c *control) close() {
	c.stop()
	c.conn.Close()
	c.wg.Wait()
}
