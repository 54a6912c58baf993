package recipetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// A fault that strikes at the n-th request of a call.
type directoryFault struct {
	name   string
	before bool // before the request, else after the reply
	// strike may do anything meanwhile; its result replaces that of the request.
	strike func(w *world, path string, c backendtest.Call, err error) error
	lossy  bool // the call may fail
}

func directoryFaults() []directoryFault {
	use := func(w *world, path string) {
		other := w.Open("meanwhile", nil)
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, coord.NewMutex(other, path+"/again", nil)))
	}
	lost := func(*world, string, backendtest.Call, error) error { return backend.ErrUncertain }
	return []directoryFault{
		{"the request is lost", true, lost, false},
		{"the reply is lost", false, lost, false},
		{"the session is lost with the request", true, func(w *world, _ string, c backendtest.Call, _ error) error {
			w.Link("a").Expire(c.Session.ID())
			return coordtest.Silence(context.Background(), c)
		}, true},
		{"the session is lost with the reply", false, func(w *world, _ string, c backendtest.Call, _ error) error {
			w.Link("a").Expire(c.Session.ID())
			return coordtest.Silence(context.Background(), c)
		}, true},
		{"the empty containers go", true, func(w *world, _ string, _ backendtest.Call, _ error) error {
			w.Collect()
			return nil
		}, false},
		{"the empty containers go after it", false, func(w *world, _ string, _ backendtest.Call, err error) error {
			w.Collect()
			return err
		}, false},
		{"a lock is used below", true, func(w *world, path string, _ backendtest.Call, _ error) error {
			use(w, path)
			return nil
		}, false},
		{"a lock is used below, and all empty containers go", true, func(w *world, path string, _ backendtest.Call, _ error) error {
			use(w, path)
			w.Collect()
			return nil
		}, false},
		{"the containers go, and a lock is used below", true, func(w *world, path string, _ backendtest.Call, _ error) error {
			w.Collect()
			use(w, path)
			return nil
		}, false},
		{"a lock is used below, after it", false, func(w *world, path string, _ backendtest.Call, err error) error {
			use(w, path)
			return err
		}, false},
	}
}

// At each request of each call that sets something in a directory, or removes it, a fault strikes:
// what was acknowledged stands after all empty containers have gone, and what was removed is gone.
func TestDirectory_WithAFaultAtEachRequest(t *testing.T) {
	t.Parallel()
	const path = "/app/config"
	requests := 0
	for _, s := range settingKinds() {
		for _, fault := range directoryFaults() {
			for _, start := range []string{"a directory", "a directory with nodes", "an empty directory of earlier versions", "a value with a lock below it", "nothing"} {
				for _, remove := range []bool{false, true} {
					if remove && s.unset == nil {
						continue
					}
					if n := share(); coordtest.Race && n > 1 && rand.IntN(n) > 0 { // these cells take 20 s of processor time under it
						continue
					}
					for n := 1; ; n++ {
						struck := false
						t.Run(fmt.Sprint(s.name, "/", fault.name, "/", start, "/removed ", remove, "/request ", n), func(t *testing.T) {
							coordtest.OnMemoryCollecting(t, func(cw *coordtest.World) {
								w := &world{cw}
								var nth coordtest.Nth
								hooks := &backendtest.Hooks{}
								if fault.before {
									hooks.Before = nth.Before
								} else {
									hooks.After = nth.After
								}
								a, b := w.Open("a", hooks), w.Open("b", nil)
								lock := coord.NewMutex(b, path+"/lock", nil)
								var held *coord.Hold
								switch start {
								case "a directory":
									coordtest.MustRelease(w.T, coordtest.MustLock(w.T, lock))
								case "a directory with nodes":
									held = coordtest.MustLock(w.T, lock)
								case "an empty directory of earlier versions":
									w.commit(backend.Create(w.Path("/app"), nil, backend.Container))
									w.commit(backend.Create(w.Path(path), nil, backend.Container))
									w.commit(backend.Create(w.Path(path+"/x"), nil, backend.Ephemeral))
									w.commit(backend.Delete(w.Path(path+"/x"), backend.AnyVersion))
								case "a value with a lock below it":
									w.must(s.set(b, path))
									coordtest.MustRelease(w.T, coordtest.MustLock(w.T, lock))
									if s.unset == nil {
										return
									}
									if !remove {
										w.must(s.unset(b, path))
									}
								}
								call, want := s.set, true
								if remove {
									if start != "a value with a lock below it" {
										w.must(s.set(b, path))
									}
									call, want = s.unset, false
								}
								nth.Arm(n, func(c backendtest.Call) bool {
									return c.Op == "commit" || c.Op != "sync" && !strings.HasSuffix(fault.name, " is lost")
								}, func(_ context.Context, c backendtest.Call, err error) error {
									struck = true
									return fault.strike(w, path, c, err)
								})
								err := call(a, path)
								nth.Arm(0, nil, nil)
								if err != nil && (!fault.lossy || !errors.Is(err, coord.ErrUncertain)) {
									w.T.Fatalf("%v\n%s", err, w.dump("/app"))
								}
								check := func(when string) {
									w.T.Helper()
									got, serr := s.isSet(w.Open("fresh", nil), path)
									if serr != nil || got != want && err == nil {
										w.T.Fatalf("%s: set %v, %v, want %v (the call returned %v)\n%s", when, got, serr, want, err, w.dump("/app"))
									}
									want = got // of an uncertain call
									if serr == nil {
										err = nil
									}
								}
								check("at once")
								if held != nil {
									w.must(held.Release())
								}
								w.Collect()
								check("after a collection")
								coordtest.MustRelease(w.T, coordtest.MustLock(w.T, lock))
								w.Collect()
								check("after the use of a lock and a collection")
								if s.unset == nil {
									return
								}
								w.must(s.unset(w.Open("fresh", nil), path))
								want = false
								check("removed")
								w.Collect()
								if text := w.dump("/app"); strings.Contains(text, pin) {
									w.T.Errorf("a pin is left:\n%s", text)
								}
							})
						})
						if !struck || t.Failed() {
							break
						}
						requests++
					}
				}
			}
		}
	}
	t.Logf("figure: %d requests struck", requests)
}
