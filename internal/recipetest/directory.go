package recipetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

func (on Services) eachCollecting(t *testing.T, f func(w *world)) {
	t.Parallel()
	if on.Memory {
		coordtest.OnMemoryCollecting(t, func(w *coordtest.World) { f(&world{w}) })
	}
	on.realOf(t, on.Collecting, f)
}

const pin = "/_coord-pin"

// directoryTests are tests of Directory on each service.
type directoryTests struct{ Services }

// What is set at a path lasts until it is removed, and nothing else counts as set there, in
// whatever order the path and those below it are used, and whichever empty containers the service
// removes in between.
func (on directoryTests) OfSettingsInEachOrder(t *testing.T) {
	ctx := context.Background()
	n := 0
	for _, s := range settingKinds() {
		for _, below := range []string{"a lock", "a held lock", "a value", "a counter"} {
			for _, first := range []string{"above", "below", "below, gone"} {
				t.Run(s.name+" above "+below+", first "+first, func(t *testing.T) {
					n++
					real := n%5 == 0 || coordtest.Long()
					on.eachCollecting(t, func(w *world) {
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
func (on directoryTests) OfARandomTree(t *testing.T) {
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
	on.eachCollecting(t, func(w *world) {
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
func (on directoryTests) AndAnEphemeralBarrier(t *testing.T) {
	on.eachCollecting(t, func(w *world) {
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
		w.collected("/maint/stop/lock")
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

// Nodes of other programs, and of earlier versions: which of them are set.
func (on directoryTests) OfOtherPrograms(t *testing.T) {
	on.eachCollecting(t, func(w *world) {
		ctx := context.Background()
		persistent := func(path, data string) backend.Op {
			return backend.Create(w.Path(path), []byte(data), backend.Persistent)
		}
		deleted := func(path string) backend.Op { return backend.Delete(w.Path(path), backend.AnyVersion) }
		for i, x := range []struct {
			name    string
			nodes   func(path string) []backend.Op
			barrier string // "set", "not", or the kind that refuses
			value   string // "not", the data, or the kind that refuses
		}{
			{"an empty directory with nodes", func(p string) []backend.Op { return []backend.Op{persistent(p, ""), persistent(p+"/x", "")} }, "not", "not"},
			{"an empty directory that had nodes", func(p string) []backend.Op {
				return []backend.Op{persistent(p, ""), persistent(p+"/x", ""), deleted(p + "/x")}
			}, "not", "not"},
			{"a directory that was never used", func(p string) []backend.Op { return []backend.Op{persistent(p, "coord recipe: directory")} }, "not", "not"},
			{"a value that was deleted", func(p string) []backend.Op {
				return []backend.Op{persistent(p, "coord recipe: value"), persistent(p+"/x", "")}
			}, "value", "not"},
			{"a value of no bytes with nodes", func(p string) []backend.Op {
				return []backend.Op{persistent(p, "x"), backend.SetData(w.Path(p), nil, 0), persistent(p+"/x", "")}
			}, "value", ""},
			{"a mutex", func(p string) []backend.Op { return []backend.Op{persistent(p, "coord recipe: mutex")} }, "mutex", "mutex"},
			{"a barrier of Curator", func(p string) []backend.Op { return []backend.Op{persistent(p, "10.0.0.1")} }, "set", "10.0.0.1"},
		} {
			path := fmt.Sprint("/n", i)
			s := w.Session("others")
			if _, err := s.Commit(ctx, x.nodes(path)...); err != nil {
				w.T.Fatal(err)
			}
			s.Close()
			c := w.Open("c", nil)
			set, err := barrierIsSet(c, path)
			switch x.barrier {
			case "set", "not":
				if set != (x.barrier == "set") || err != nil {
					w.T.Errorf("%s: the barrier is set: %v, %v", x.name, set, err)
				}
			default:
				wantKind(w.T, err, w.Path(path), "barrier", x.barrier)
			}
			v := coord.NewValue(c, path, &coord.ValueOptions[string]{Codec: coord.Text()})
			got, err := v.Get(ctx)
			switch x.value {
			case "not":
				coordtest.WantErr(w.T, err, coord.ErrNotFound)
			case "mutex":
				wantKind(w.T, err, w.Path(path), "value", x.value)
			default:
				if err != nil || got.Value != x.value || got.Czxid == 0 {
					w.T.Errorf("%s: %+v, %v", x.name, got, err)
				}
			}
		}
		// A barrier of kazoo is an empty node that never had a child, on a service that tells.
		w.commit(persistent("/kazoo", ""))
		stat, err := w.stat("/kazoo")
		w.must(err)
		if set, err := barrierIsSet(w.Open("c", nil), "/kazoo"); set != (stat.Pzxid != 0) || err != nil {
			w.T.Errorf("kazoo's barrier: set %v, %v", set, err)
		}
	})
}

// What an earlier version, or a client that has died in between, wrote into a container without a pin
// gets one with the next write.
func (on directoryTests) GetThePinThatIsMissing(t *testing.T) {
	on.eachCollecting(t, func(w *world) {
		ctx := context.Background()
		s := w.Session("earlier")
		if !s.Features().Has(backend.Containers) {
			w.T.Skip("there are no containers")
		}
		commit := func(ops ...backend.Op) {
			w.T.Helper()
			if _, err := s.Commit(ctx, ops...); err != nil {
				w.T.Fatal(err)
			}
		}
		text := &coord.ValueOptions[string]{Codec: coord.Text()}
		for name, write := range map[string]func(v *coord.Value[string]) error{
			"set": func(v *coord.Value[string]) error { _, err := v.Set(ctx, "precious"); return err },
			"cas": func(v *coord.Value[string]) error {
				old, err := v.Get(ctx)
				if err == nil {
					_, err = v.CompareAndSet(ctx, old, "precious")
				}
				return err
			},
			"txn": func(v *coord.Value[string]) error {
				_, err := coord.NewTxn(w.Open("txn", nil)).Add(coord.NewValue(w.Open("txn", nil), "/txn", text).SetOp("precious")).Commit(ctx)
				return err
			},
		} {
			path := "/" + name
			w.container(path, path+"/child")
			commit(backend.SetData(w.Path(path), []byte("old"), 0))
			v := coord.NewValue(w.Open("c", nil), path, text)
			w.must(write(v))
			commit(backend.Delete(w.Path(path+"/child"), backend.AnyVersion))
			w.Collect()
			if got, err := v.Get(ctx); err != nil || got.Value != "precious" {
				w.T.Errorf("%s: %+v, %v", name, got, err)
			}
			// An outsider that deletes the pin costs nothing either.
			commit(backend.Delete(w.Path(path+pin), backend.AnyVersion), backend.Create(w.Path(path+"/child"), nil, backend.Persistent))
			w.must(write(v))
			commit(backend.Delete(w.Path(path+"/child"), backend.AnyVersion))
			w.Collect()
			if got, err := v.Get(ctx); err != nil || got.Value != "precious" {
				w.T.Errorf("%s, without a pin: %+v, %v", name, got, err)
			}
		}
		s.Close()
	})
}

// A pin is no node for a Cache and its views, and no path for a recipe.
func (on directoryTests) PinsAreHidden(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, coord.NewMutex(c, "/config/app/lock", nil)))
		_, err := coord.NewValue[int](c, "/config/app", nil).Set(ctx, 7)
		w.must(err)
		k := coord.NewCache(c, "/config", nil)
		defer w.goRun(k)()
		<-k.Synced()
		if _, err := coord.NewValue[int](c, "/config", nil).Set(ctx, 8); err != nil { // while the cache runs
			w.T.Fatal(err)
		}
		v := coord.NewCacheView(k, coord.Codec[int]{})
		w.Eventually("the cache has the second value", func() bool { e, ok := v.Get("/config"); return ok && e.Err == nil && e.Value == 8 })
		var paths []string
		for p := range k.Walk("/config") {
			paths = append(paths, p)
		}
		if want := []string{"/config", "/config/app", "/config/app/lock"}; !slices.Equal(paths, want) {
			w.T.Errorf("the cache has %q, want %q", paths, want)
		}
		var values []string
		for p, e := range v.All("/config") {
			values = append(values, fmt.Sprint(p, " ", e.Value, " ", e.Err))
		}
		if want := []string{"/config 8 <nil>", "/config/app 7 <nil>"}; !slices.Equal(values, want) {
			w.T.Errorf("the view has %q, want %q", values, want)
		}
		if names, _ := k.Children("/config/app"); !slices.Equal(names, []string{"lock"}) {
			w.T.Errorf("children %q", names)
		}
		_, err = coord.NewValue[int](c, "/config/app"+pin, nil).Get(ctx)
		coordtest.WantErr(w.T, err, coord.ErrBadPath)
	})
}

// A directory that is made for a lock is no barrier before the lock's node is in it, nor if the
// client that makes it dies before.
func (on directoryTests) AreNoBarriersWhileTheyAreMade(t *testing.T) {
	on.each(t, func(w *world) {
		var before coordtest.Nth
		a, b := w.Open("a", &backendtest.Hooks{Before: before.Before}), w.Open("b", nil)
		looked := false
		before.Arm(1, func(c backendtest.Call) bool { return c.Op == "commit" && c.Path == w.Path("/maint/stop/lock") }, func(context.Context, backendtest.Call, error) error {
			looked = true
			if _, err := w.stat("/maint/stop"); err != nil {
				looked = false // the parent is missing: the first attempt
				before.Arm(1, func(c backendtest.Call) bool { return c.Op == "commit" && c.Path == w.Path("/maint/stop/lock") }, func(context.Context, backendtest.Call, error) error {
					looked = true
					if set, err := barrierIsSet(b, "/maint/stop"); set || err != nil {
						w.T.Errorf("a barrier that nobody set: %v, %v", set, err)
					}
					return nil
				})
			}
			return nil
		})
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, coord.NewMutex(a, "/maint/stop/lock", nil)))
		if !looked {
			w.T.Error("the directory was never seen without its node")
		}
	})
}

// Two clients that set a value in one directory at once: one of them creates it, the other one sees
// that, and no write is lost.
func (on directoryTests) TwoClientsAtOnce(t *testing.T) {
	on.eachCollecting(t, func(w *world) {
		ctx := context.Background()
		var before coordtest.Nth
		a, b := w.Open("a", &backendtest.Hooks{Before: before.Before}), w.Open("b", nil)
		for i, x := range []struct {
			name string
			call func(v *coord.Value[int]) error
			want error
			n    int
		}{
			{"compare and set", func(v *coord.Value[int]) error {
				_, err := v.CompareAndSet(ctx, coord.Versioned[int]{}, 1)
				return err
			}, coord.ErrConflict, 5},
			{"update", func(v *coord.Value[int]) error {
				_, err := v.Update(ctx, func(n int) (int, error) { return n + 1, nil })
				return err
			}, nil, 6},
			{"set", func(v *coord.Value[int]) error { _, err := v.Set(ctx, 7); return err }, nil, 7},
		} {
			path := fmt.Sprint("/d", i)
			empty := w.directory(b, path)
			v, other := coord.NewValue[int](a, path, nil), coord.NewValue[int](b, path, nil)
			_, err := v.Get(ctx)
			coordtest.WantErr(w.T, err, coord.ErrNotFound)
			before.Arm(1, func(c backendtest.Call) bool {
				return c.Op == "commit" && c.Path == w.Path(path) && c.Ops[0].Kind == backend.OpSetData
			}, func(context.Context, backendtest.Call, error) error {
				_, err := other.Set(ctx, 5)
				w.must(err)
				return nil
			})
			err = x.call(v)
			if x.want == nil && err != nil || x.want != nil && !errors.Is(err, x.want) {
				w.T.Errorf("%s: %v, want %v", x.name, err, x.want)
			}
			empty()
			w.Collect()
			if got, err := other.Get(ctx); err != nil || got.Value != x.n {
				w.T.Errorf("%s: %+v, %v, want %d", x.name, got, err, x.n)
			}
		}
	})
}
