package coord_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

func onEachCollecting(t *testing.T, f func(w *world)) {
	coordtest.OnEachCollecting(t, func(w *coordtest.World) { f(&world{w}) })
}

const pin = "/_coord-pin"

// A setting is a recipe of one node.
type setting struct {
	name string
	set  func(c *coord.Client, path string) error
	// isSet reports whether what set has set is there; an error is one that no caller expects.
	isSet func(c *coord.Client, path string) (bool, error)
	unset func(c *coord.Client, path string) error // nil: the recipe has no such call
}

// barrierIsSet reports whether a call of Wait blocks.
func barrierIsSet(c *coord.Client, path string) (bool, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	blocks := errors.New("it blocks")
	w := coord.NewBarrier(c, path, nil)
	timer := time.AfterFunc(300*time.Millisecond, func() { cancel(blocks) }) // a late answer counts as set
	defer timer.Stop()
	err := w.Wait(ctx)
	if errors.Is(err, blocks) {
		return true, nil
	}
	return false, err
}

func settingKinds() []setting {
	text := &coord.ValueOptions[string]{Codec: coord.Text()}
	value := func(name, data string) setting {
		return setting{
			name,
			func(c *coord.Client, path string) error {
				_, err := coord.NewValue(c, path, text).Set(context.Background(), data)
				return err
			},
			func(c *coord.Client, path string) (bool, error) {
				got, err := coord.NewValue(c, path, text).Get(context.Background())
				if errors.Is(err, coord.ErrNotFound) {
					return false, nil
				}
				if err == nil && got.Value != data {
					err = fmt.Errorf("it is %q", got.Value)
				}
				return err == nil, err
			},
			func(c *coord.Client, path string) error {
				v := coord.NewValue(c, path, text)
				got, err := v.Get(context.Background())
				if errors.Is(err, coord.ErrNotFound) {
					return nil
				}
				if err != nil {
					return err
				}
				return v.Delete(context.Background(), got)
			},
		}
	}
	with := func(s setting, name string, set func(c *coord.Client, path string) error) setting {
		s.name, s.set = name, set
		return s
	}
	v := value("value", "precious")
	return []setting{
		v,
		value("value of no bytes", ""),
		with(v, "value by CompareAndSet", func(c *coord.Client, path string) error {
			_, err := coord.NewValue(c, path, text).CompareAndSet(context.Background(), coord.Versioned[string]{}, "precious")
			return err
		}),
		with(v, "value by Update", func(c *coord.Client, path string) error {
			_, err := coord.NewValue(c, path, text).Update(context.Background(), func(old string) (string, error) {
				if old != "" {
					return "", fmt.Errorf("old value %q", old)
				}
				return "precious", nil
			})
			return err
		}),
		with(v, "value in a transaction", func(c *coord.Client, path string) error {
			done, err := coord.NewTxn(c).Add(coord.NewValue(c, path, text).SetOp("precious")).Commit(context.Background())
			if err == nil && !strings.HasSuffix(done[0].Path, path) {
				err = fmt.Errorf("the result is that of %s", done[0].Path)
			}
			if got, gerr := coord.NewValue(c, path, text).Get(context.Background()); err == nil && (gerr != nil || got.Version != done[0].Version || got.Mzxid != done[0].Zxid) {
				err = fmt.Errorf("the result is %+v, stored is %+v (%v)", done[0], got, gerr)
			}
			return err
		}),
		{
			"counter",
			func(c *coord.Client, path string) error {
				_, err := coord.NewCounter(c, path).Add(context.Background(), 7)
				return err
			},
			func(c *coord.Client, path string) (bool, error) {
				n, err := coord.NewCounter(c, path).Get(context.Background())
				if err == nil && n != 0 && n != 7 {
					err = fmt.Errorf("it is %d", n)
				}
				return n == 7, err
			},
			nil,
		},
		{
			"barrier",
			func(c *coord.Client, path string) error {
				return coord.NewBarrier(c, path, nil).Set(context.Background())
			},
			barrierIsSet,
			func(c *coord.Client, path string) error {
				return coord.NewBarrier(c, path, nil).Remove(context.Background())
			},
		},
	}
}

// What is set at a path lasts until it is removed, and nothing else counts as set there, in
// whatever order the path and those below it are used, and whichever empty containers the service
// removes in between.
func TestDirectories_OfSettingsInEachOrder(t *testing.T) {
	ctx := context.Background()
	n := 0
	for _, s := range settingKinds() {
		for _, below := range []string{"a lock", "a held lock", "a value", "a counter"} {
			for _, first := range []string{"above", "below", "below, gone"} {
				t.Run(s.name+" above "+below+", first "+first, func(t *testing.T) {
					n++
					real := n%5 == 0 || coordtest.Long()
					onEachCollecting(t, func(w *world) {
						if !w.Fake && !real {
							return
						}
						a, b := w.Open("a", nil), w.Open("b", nil)
						const path = "/config/app"
						want := func(set bool, when string) {
							w.T.Helper()
							for _, c := range []*coord.Client{a, b, w.Open("fresh", nil)} {
								if got, err := s.isSet(c, path); err != nil || got != set {
									w.T.Fatalf("%s: set %v, %v, want %v\n%s", when, got, err, set, w.dump("/config"))
								}
							}
						}
						var stop func() error
						use := func() {
							w.T.Helper()
							stop = nil
							var err error
							switch below {
							case "a lock", "a held lock":
								var h *coord.Hold
								h, err = coord.NewMutex(b, path+"/lock", nil).Lock(ctx)
								if err == nil && below == "a lock" {
									err = h.Release()
								} else if err == nil {
									stop = h.Release
								}
							case "a value":
								_, err = coord.NewValue[int](b, path+"/limits", nil).Set(ctx, 5)
							case "a counter":
								_, err = coord.NewCounter(b, path+"/ids").Add(ctx, 5)
							}
							w.must(err)
						}
						set := func() {
							w.T.Helper()
							want(false, "before it is set")
							w.must(s.set(a, path))
						}
						if first == "above" {
							set()
							use()
						} else {
							use()
							if first == "below, gone" {
								if stop != nil {
									w.must(stop())
									stop = nil
								}
								w.Collect()
							}
							set()
						}
						want(true, "set")
						w.Collect()
						want(true, "after a collection")
						if stop != nil {
							w.must(stop())
						}
						w.Collect()
						want(true, "after the collection of what was below")
						if s.unset == nil {
							return
						}
						w.must(s.unset(b, path))
						want(false, "removed")
						w.must(s.unset(a, path)) // nothing is there
						w.Collect()
						use()
						want(false, "removed, and used below")
						w.must(s.set(b, path))
						want(true, "set again")
						if stop != nil {
							w.must(stop())
						}
						w.Collect()
						want(true, "set again, after a collection")
						w.must(s.unset(b, path))
						w.Collect()
						want(false, "removed again")
						if text := w.dump("/config"); strings.Contains(text, pin) {
							w.T.Errorf("a pin is left:\n%s", text)
						}
						switch below {
						case "a value":
							got, err := coord.NewValue[int](a, path+"/limits", nil).Get(ctx)
							if err != nil || got.Value != 5 {
								w.T.Errorf("below: %+v, %v", got, err)
							}
						case "a counter":
							if n, err := coord.NewCounter(a, path+"/ids").Get(ctx); err != nil || n < 5 {
								w.T.Errorf("below: %d, %v", n, err)
							}
						}
					})
				})
			}
		}
	}
}

// Two clients that set values, counters and barriers in a tree, use locks between them, and remove
// them, at random, while containers go: each reads what was set last.
func TestDirectories_OfARandomTree(t *testing.T) {
	paths := []string{"/a", "/a/b", "/a/b/c", "/a/d", "/e"}
	all := settingKinds()
	run := func(w *world, seed uint64, steps int) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		ctx := context.Background()
		var after coordtest.Nth
		clients := []*coord.Client{w.Open("a", &backendtest.Hooks{After: after.After}), w.Open("b", nil)}
		kinds, set := make(map[string]setting), make(map[string]bool)
		top := fmt.Sprint("/tree", seed)
		for _, p := range paths {
			kinds[p] = all[rnd.IntN(len(all))]
		}
		var log []string
		fail := func(format string, args ...any) {
			w.T.Helper()
			w.T.Fatalf("seed %d: %s\n%s\n%s", seed, fmt.Sprintf(format, args...), strings.Join(log, "\n"), w.dump(top))
		}
		for range steps {
			p := paths[rnd.IntN(len(paths))]
			s, c := kinds[p], clients[rnd.IntN(2)]
			var err error
			switch rnd.IntN(8) {
			case 0:
				log = append(log, "lock below "+p)
				if err = coord.NewMutex(c, top+p+"/lock", nil).Do(ctx, func(context.Context, *coord.Hold) error { return nil }); err != nil {
					fail("%v", err)
				}
			case 1:
				log = append(log, "collect")
				w.Collect()
			case 2, 3, 4:
				if set[p] {
					continue // some of the calls create only
				}
				if rnd.IntN(3) == 0 && w.Fake {
					after.Arm(1+rnd.IntN(3), func(c backendtest.Call) bool { return c.Op == "commit" }, coordtest.Lose)
				}
				log = append(log, s.name+" set at "+p)
				if err = s.set(c, top+p); err != nil {
					fail("%v", err)
				}
				after.Arm(0, nil, nil)
				set[p] = true
			case 5, 6:
				if s.unset == nil {
					continue
				}
				log = append(log, s.name+" removed at "+p)
				if err = s.unset(c, top+p); err != nil {
					fail("%v", err)
				}
				set[p] = false
			}
			for _, p := range paths {
				for i, c := range clients {
					if !w.Fake && rnd.IntN(4) > 0 {
						continue
					}
					if got, err := kinds[p].isSet(c, top+p); err != nil || got != set[p] {
						fail("%s at %s by client %d: set %v, %v, want %v", kinds[p].name, p, i, got, err, set[p])
					}
				}
			}
		}
		for p := range set {
			if kinds[p].unset != nil {
				w.must(kinds[p].unset(clients[0], top+p))
			}
		}
		w.Collect()
		keep := slices.ContainsFunc(paths, func(p string) bool { return set[p] && kinds[p].unset == nil })
		if text := w.dump(top); strings.Contains(text, pin) && !keep {
			fail("a pin is left")
		}
	}
	onEachCollecting(t, func(w *world) {
		seeds, steps := uint64(40), 60
		if !w.Fake {
			seeds, steps = 2, 25
		}
		for seed := range seeds {
			run(w, seed, steps)
		}
	})
}

// An ephemeral barrier takes the place of an empty directory. Above nodes it is refused with
// ErrKind, and so is a node below it.
func TestDirectories_AndAnEphemeralBarrier(t *testing.T) {
	onEachCollecting(t, func(w *world) {
		ctx := context.Background()
		c, other := w.Open("a", nil), w.Open("b", nil)
		b := coord.NewBarrier(c, "/maint/stop", &coord.BarrierOptions{Ephemeral: true})
		wants := func(set bool) {
			w.T.Helper()
			if got, err := barrierIsSet(other, "/maint/stop"); got != set || err != nil {
				w.T.Fatalf("set %v, %v, want %v", got, err, set)
			}
		}
		lock := coord.NewMutex(other, "/maint/stop/lock", nil)
		h, err := lock.Lock(ctx)
		w.must(err)
		coordtest.WantErr(w.T, b.Set(ctx), coord.ErrKind)
		wants(false)
		w.must(h.Release())
		w.commit(backend.Delete(w.Path("/maint/stop/lock"), backend.AnyVersion)) // as the service does
		w.must(b.Set(ctx))
		w.must(b.Set(ctx))
		wants(true)
		_, err = lock.Lock(ctx)
		coordtest.WantErr(w.T, err, coord.ErrKind)
		coordtest.WantErr(w.T, err, coord.ErrNoChildren)
		_, err = coord.NewValue[int](other, "/maint/stop/limit", nil).Set(ctx, 1)
		coordtest.WantErr(w.T, err, coord.ErrKind)
		coordtest.WantErr(w.T, coord.NewBarrier(other, "/maint/stop/deep/er", nil).Set(ctx), coord.ErrKind)
		w.must(b.Remove(ctx))
		wants(false)
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, lock))
		w.Collect()
	})
}
