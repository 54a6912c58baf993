//go:build unix

package coordtest_test

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/coordtest"
)

// sceneEnv makes TestNothingIsLeftOfATestThatFails, in a child process, the test that goes wrong.
const sceneEnv = "COORD_COORDTEST_SCENE"

// play is a user's test that goes wrong.
func play(t *testing.T, scene string) {
	coordtest.Each(t, nil, func(t *testing.T, s *coordtest.Service) {
		a, b := s.Client("a", nil), s.Client("b", nil)
		coordtest.Announce(s)
		if _, err := coord.NewMutex(a, "/lock", nil).Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		waiting := make(chan struct{})
		go func() { // a goroutine of the user's that waits on the service
			close(waiting)
			_, _ = coord.NewMutex(b, "/lock", nil).Lock(t.Context()) // ends with the test
		}()
		<-waiting
		s.Link("a").Blackhole(true)
		switch scene {
		case "error":
			t.Error("wrong")
		case "fatal":
			t.FailNow()
		case "skip":
			t.Skip("after all")
		case "panic":
			if !s.Fake() {
				panic("in the test")
			}
		}
	})
}

// However a user's test ends, no process, file or goroutine is left.
func TestNothingIsLeftOfATestThatFails(t *testing.T) {
	if scene := os.Getenv(sceneEnv); scene != "" {
		play(t, scene)
		return
	}
	for _, scene := range []string{"error", "fatal", "skip", "panic", "pass"} {
		t.Run(scene, func(t *testing.T) {
			t.Parallel()
			tmp := t.TempDir()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+regexp.QuoteMeta(strings.Split(t.Name(), "/")[0])+"$", "-test.v", "-test.timeout=5m")
			cmd.Env = append(os.Environ(), sceneEnv+"="+scene, "TMPDIR="+tmp)
			out, err := cmd.CombinedOutput()
			text := string(out)
			if fails := scene != "skip" && scene != "pass"; fails != (err != nil) {
				t.Errorf("the test binary ended with %v:\n%s", err, text)
			}
			if strings.Contains(text, "found unexpected goroutines") || strings.Contains(text, "deadlock") {
				t.Errorf("a goroutine is left:\n%s", text)
			}
			if scene == "panic" != strings.Contains(text, "panic: in the test") {
				t.Errorf("the panic is not that of the test:\n%s", text)
			}
			servers := regexp.MustCompile(`(?m)^server (\d+)$`).FindAllStringSubmatch(text, -1)
			if len(servers) == 0 {
				t.Fatalf("no server was started:\n%s", text)
			}
			for _, m := range servers {
				if pid, err := strconv.Atoi(m[1]); err != nil || syscall.Kill(pid, 0) == nil {
					t.Errorf("process %s is left, error %v", m[1], err)
				}
			}
			left, err := os.ReadDir(tmp)
			if err != nil || len(left) > 0 {
				t.Errorf("files are left: %v, %v", left, err)
			}
		})
	}
}

// The server is there when the client is closed, so that closing it frees at once what it holds; and
// it ends after that.
func TestTheClientIsClosedBeforeTheServer(t *testing.T) {
	t.Parallel()
	checked := false
	t.Run("inner", func(t *testing.T) {
		zk := coordtest.StartZooKeeper(t, nil)
		t.Cleanup(func() { // before the end of the server, and after the client's
			stats, err := coordtest.Mntr(zk.Server(0))
			if err != nil || stats["zk_ephemerals_count"] != "0" {
				t.Errorf("%s ephemeral nodes when the server ends, %v", stats["zk_ephemerals_count"], err)
			}
			checked = true
		})
		s := zk.Service(t, nil)
		if _, err := coord.NewMutex(s.Client("a", nil), "/lock", nil).Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		stats, err := coordtest.Mntr(zk.Server(0))
		if err != nil || stats["zk_ephemerals_count"] != "1" {
			t.Errorf("%s ephemeral nodes under a lock, %v", stats["zk_ephemerals_count"], err)
		}
	})
	if !checked {
		t.Error("nothing was checked")
	}
}

// Parallel tests have services of their own: a fault of one is none of the other's.
func TestParallelTestsHaveServicesOfTheirOwn(t *testing.T) {
	for i := range 2 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			coordtest.Each(t, nil, func(t *testing.T, s *coordtest.Service) {
				c := s.Client("a", nil)
				h := must[*coord.Hold](t)(coord.NewMutex(c, "/lock", nil).TryLock(t.Context()))
				if i == 0 {
					s.Link("a").Expire()
					<-h.Done()
				} else if err := h.Verify(t.Context()); err != nil {
					t.Errorf("the hold ended with %v", err)
				}
			})
		})
	}
}
