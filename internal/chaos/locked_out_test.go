//go:build linux

package chaos

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/zktest"
)

// TestAServerThatIsLockedOutComesBack creates the state after an election that fails at the
// wrong moment: a server has accepted a later epoch than the others.
func TestAServerThatIsLockedOutComesBack(t *testing.T) {
	zktest.Require(t)
	r := &run{t: t, dir: t.TempDir()}
	r.e = zktest.Run(t, &zktest.Options{
		Servers: 3, TickTime: tick, SyncLimit: syncLimit, InitLimit: initLimit,
		Config: map[string]string{"snapCount": "20"},
	})
	n := newNemesis(r, nil)
	ctx, cancel := n.ctx()
	defer cancel()
	s := r.e.Followers(ctx)[0]
	s.Kill()
	file := filepath.Join(s.DataDir(), "version-2", "acceptedEpoch")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	epoch, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(strconv.Itoa(epoch+1)), 0o644); err != nil {
		t.Fatal(err)
	}
	refused := logged(s, "is less than accepted epoch")
	if err := s.Launch(); err != nil {
		t.Fatal(err)
	}
	if err := until("the server refuses the leader", limit, refused); err != nil {
		t.Fatal(err)
	}
	n.since = time.Now().Add(-time.Minute)
	session := r.session() // its changes make the leader take snapshots
	defer session.Close()
	if _, err := session.Commit(ctx, backend.Create("/n", nil, backend.Persistent)); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if _, err := session.Commit(ctx, backend.SetData("/n", nil, backend.AnyVersion)); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.serves(s); err != nil {
		t.Fatal(err)
	}
	if servers := len(r.e.Followers(ctx)); servers != 2 {
		t.Errorf("%d servers follow the leader, want 2", servers)
	}
}
