package backendtest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-coord/coord/backend"
)

// treeDefects are the defects of WatchTree.
func treeDefects() []defect {
	type changes = []backend.TreeChange
	return []defect{
		{"a tree is told late", "tree", "reports a change before any read that shows it", func(_ Link, m *mutant) {
			m.tree = func(ctx context.Context, path string, w *backend.TreeWatch) error {
				below := backend.NewTreeWatch(0)
				if err := m.Session.WatchTree(ctx, path, below); err != nil {
					return err
				}
				relayTree(w, below, func(all changes, over bool) (changes, bool) {
					time.Sleep(time.Millisecond)
					return all, over
				})
				return nil
			}
		}},
		{"a tree learns of own writes late", "tree", "reports an own write before the next read", func(_ Link, m *mutant) {
			m.treed(func(_ string, all changes, over bool) (changes, bool) {
				time.Sleep(time.Millisecond)
				return all, over
			})
		}},
		{"a tree reports its siblings", "tree", "reports every change at and below its node, and no other", func(_ Link, m *mutant) {
			m.treed(func(_ string, all changes, over bool) (changes, bool) { return all, over })
			m.tree = func(ctx context.Context, path string, w *backend.TreeWatch) error {
				below := backend.NewTreeWatch(0)
				if err := m.Session.WatchTree(ctx, "/", below); err != nil {
					return err
				}
				relayTree(w, below, func(all changes, over bool) (changes, bool) {
					return slices.DeleteFunc(all, func(c backend.TreeChange) bool { return !strings.HasPrefix(c.Path, path) }), over
				})
				return nil
			}
		}},
		{"a tree reports changes of children's lists", "tree", "reports every change at and below its node, and no other", func(_ Link, m *mutant) {
			m.treed(func(_ string, all changes, over bool) (changes, bool) {
				var more changes
				for _, c := range all {
					more = append(more, c)
					if i := strings.LastIndexByte(c.Path, '/'); c.Kind != backend.TreeChanged && i > 0 {
						more = append(more, backend.TreeChange{Path: c.Path[:i], Kind: backend.TreeChanged})
					}
				}
				return more, over
			})
		}},
		{"a tree of a missing node is not armed", "tree", "follows a node that is missing, with its parent", func(_ Link, m *mutant) {
			m.tree = func(ctx context.Context, path string, w *backend.TreeWatch) error {
				if _, err := m.Session.Exists(ctx, path, nil); errors.Is(err, backend.ErrNotFound) {
					return nil
				}
				return m.Session.WatchTree(ctx, path, w)
			}
		}},
		{"a tree ends with its node", "tree", "follows a node that is missing, with its parent", func(_ Link, m *mutant) {
			m.treed(func(path string, all changes, over bool) (changes, bool) {
				return all, over || slices.ContainsFunc(all, func(c backend.TreeChange) bool { return c.Path == path && c.Kind == backend.TreeDeleted })
			})
		}},
		{"a deletion and a creation are one change", "tree", "keeps a deletion beside the creation after it", func(_ Link, m *mutant) {
			m.treed(func(_ string, all changes, over bool) (changes, bool) {
				for i, c := range all {
					if i > 0 && c.Kind == backend.TreeCreated && all[i-1].Path == c.Path {
						return changes{{Path: c.Path, Kind: backend.TreeChanged}}, over
					}
				}
				return all, over
			})
		}},
		{"a tree reports in the wrong order", "tree", "reports changes in the order of the commits and of their operations", func(_ Link, m *mutant) {
			m.treed(func(_ string, all changes, over bool) (changes, bool) {
				slices.SortFunc(all, func(a, b backend.TreeChange) int { return strings.Compare(a.Path, b.Path) })
				return all, over
			})
		}},
		{"a tree reports the zxid of the commit before", "tree", "reports the zxid of the commit, or none", func(_ Link, m *mutant) {
			m.treed(func(_ string, all changes, over bool) (changes, bool) {
				for i := range all {
					all[i].Zxid--
				}
				return all, over
			})
		}},
		{"a watch of a read at the top ends the tree", "tree", "changes nothing for the watches of reads and of Arm", func(_ Link, m *mutant) {
			trees := make(map[string]*backend.TreeWatch)
			m.tree = func(ctx context.Context, path string, w *backend.TreeWatch) error {
				trees[path] = w
				return m.Session.WatchTree(ctx, path, w)
			}
			m.watched(func(path string, children bool, w *backend.Watch) *backend.Watch {
				if !children {
					trees[path].Stop()
				}
				return w
			})
		}},
		{"a tree fires the watches below it", "tree", "does not fire the watches of reads without cause", func(_ Link, m *mutant) {
			var all []*backend.Watch
			m.watched(func(_ string, _ bool, w *backend.Watch) *backend.Watch {
				all = append(all, w)
				return w
			})
			m.tree = func(ctx context.Context, path string, w *backend.TreeWatch) error {
				for _, one := range all {
					one.Fire(backend.LookAgain)
				}
				return m.Session.WatchTree(ctx, path, w)
			}
		}},
		{"a second tree replaces the first", "tree", "is independent of other tree watches, and silent after Stop", func(_ Link, m *mutant) {
			trees := make(map[string]*backend.TreeWatch)
			m.tree = func(ctx context.Context, path string, w *backend.TreeWatch) error {
				trees[path].Stop()
				trees[path] = w
				return m.Session.WatchTree(ctx, path, w)
			}
		}},
		{"one change of a tree in three is lost", "tree", "with reads after its changes gives a copy of the tree while others write", func(_ Link, m *mutant) {
			n := 0
			m.treed(func(_ string, all changes, over bool) (changes, bool) {
				return slices.DeleteFunc(all, func(backend.TreeChange) bool { n++; return n%3 == 2 }), over
			})
		}},
		{"a tree survives a reconnect", "tree in trouble", "is over after a reconnect, before a read on the new contact returns", func(_ Link, m *mutant) {
			m.treed(func(_ string, all changes, over bool) (changes, bool) { return all, over && m.Session.Err() != nil })
		}},
		{"a tree is silent at the end of its session", "tree in trouble", "is over at the end of the session, which has its error by then", func(_ Link, m *mutant) {
			m.treed(func(_ string, all changes, over bool) (changes, bool) { return all, over && m.Session.Err() == nil })
		}},
		{"a tree that overflows drops changes", "tree in trouble", "is over when more changes wait than its limit, and the others go on", func(_ Link, m *mutant) {
			m.tree = func(ctx context.Context, path string, w *backend.TreeWatch) error {
				below := backend.NewTreeWatch(0)
				if err := m.Session.WatchTree(ctx, path, below); err != nil {
					return err
				}
				told := 0
				relayTree(w, below, func(all changes, over bool) (changes, bool) {
					told += len(all)
					if told > 20 {
						return nil, over
					}
					return all, over
				})
				return nil
			}
		}},
		{"a break lets a WatchTree succeed without arming", "tree in trouble", "is repeated when its request or its reply is lost", func(_ Link, m *mutant) {
			m.tree = func(ctx context.Context, path string, w *backend.TreeWatch) error {
				_, changed := m.Session.Status()
				if err := m.Session.Sync(ctx, path); err != nil || isClosed(changed) {
					return err
				}
				return m.Session.WatchTree(ctx, path, w)
			}
		}},
		{"an abandoned WatchTree arms", "tree in trouble", "is not armed when its context has ended", func(_ Link, m *mutant) {
			m.tree = func(ctx context.Context, path string, w *backend.TreeWatch) error {
				if err := m.Session.WatchTree(context.WithoutCancel(ctx), path, w); err != nil || ctx.Err() == nil {
					return err
				}
				return &backend.Error{Op: "watch", Path: path, Err: backend.ContextError(ctx)}
			}
		}},
		{"a WatchTree without contact is forgotten", "tree in trouble", "waits for contact, and is armed on the new one", func(_ Link, m *mutant) {
			m.tree = func(ctx context.Context, path string, w *backend.TreeWatch) error {
				if phase, _ := m.Session.Status(); phase == backend.PhaseSuspended {
					return m.Session.Sync(ctx, path)
				}
				return m.Session.WatchTree(ctx, path, w)
			}
		}},
		{"WatchTree takes any path", "tree in trouble", "refuses invalid arguments", func(_ Link, m *mutant) {
			m.tree = func(ctx context.Context, path string, w *backend.TreeWatch) error {
				if w != nil && backend.CheckPath(path) != nil {
					return nil
				}
				return m.Session.WatchTree(ctx, path, w)
			}
		}},
	}
}

// manyDefects are the defects of ReadMany.
func manyDefects() []defect {
	type results = []backend.ReadResult
	// changed passes the results through change.
	changed := func(change func(reads []backend.Read, all results) (results, error)) func(Link, *mutant) {
		return func(_ Link, m *mutant) {
			m.many = func(ctx context.Context, reads []backend.Read) (results, error) {
				all, err := m.Session.ReadMany(ctx, reads...)
				if err != nil {
					return nil, err
				}
				return change(reads, all)
			}
		}
	}
	const group = "read many"
	return []defect{
		{"a missing node fails the whole of ReadMany", group, "returns for each read what Get or Children returns", changed(func(_ []backend.Read, all results) (results, error) {
			for _, r := range all {
				if r.Err != nil {
					return nil, r.Err
				}
			}
			return all, nil
		})},
		{"ReadMany returns its results in the wrong order", group, "answers very many reads in their order", changed(func(_ []backend.Read, all results) (results, error) {
			slices.Reverse(all)
			return all, nil
		})},
		{"ReadMany drops what is too much", group, "returns more than one reply can hold", changed(func(_ []backend.Read, all results) (results, error) {
			return all[:min(len(all), 64)], nil
		})},
		{"ReadMany returns empty data that is not nil", group, "returns for each read what Get or Children returns", changed(func(_ []backend.Read, all results) (results, error) {
			for i := range all {
				all[i].Data = append([]byte{}, all[i].Data...)
			}
			return all, nil
		})},
		{"ReadMany keeps its data", group, "gives its data and names away", func(_ Link, m *mutant) {
			kept := make(map[string][]byte)
			m.many = func(ctx context.Context, reads []backend.Read) (results, error) {
				all, err := m.Session.ReadMany(ctx, reads...)
				for i, r := range all {
					if kept[reads[i].Path] == nil && len(r.Data) > 0 {
						kept[reads[i].Path] = r.Data
					}
					if len(r.Data) > 0 {
						all[i].Data = kept[reads[i].Path]
					}
				}
				return all, err
			}
		}},
		{"ReadMany answers what it was asked before", group, "sees the session's own writes, and is never behind its reads", func(_ Link, m *mutant) {
			var mu sync.Mutex
			var before results
			m.many = func(ctx context.Context, reads []backend.Read) (results, error) {
				all, err := m.Session.ReadMany(ctx, reads...)
				mu.Lock()
				defer mu.Unlock()
				if err == nil && len(before) == len(all) {
					before, all = all, before
				} else {
					before = all
				}
				return all, err
			}
		}},
		{"ReadMany reads the last node first", group, "answers each read with a state at least as new as the one before", func(_ Link, m *mutant) {
			m.many = func(ctx context.Context, reads []backend.Read) (results, error) {
				all := make(results, len(reads))
				for i := len(reads) - 1; i >= 0; i-- {
					if i == len(reads)/2 {
						time.Sleep(time.Millisecond) // lets others write
					}
					one, err := m.Session.ReadMany(ctx, reads[i])
					if err != nil {
						return nil, err
					}
					all[i] = one[0]
				}
				return all, nil
			}
		}},
		{"a ReadMany is not repeated", group, "is repeated when its request or its reply is lost", func(_ Link, m *mutant) {
			m.many = func(ctx context.Context, reads []backend.Read) (results, error) {
				_, broke := m.Session.Status()
				all, err := m.Session.ReadMany(ctx, reads...)
				if isClosed(broke) {
					return nil, &backend.Error{Op: "read", Path: reads[0].Path, Err: backend.ErrUncertain}
				}
				return all, err
			}
		}},
		{"ReadMany takes any path", group, "refuses invalid arguments", func(_ Link, m *mutant) {
			m.many = func(ctx context.Context, reads []backend.Read) (results, error) {
				all := make(results, len(reads))
				for i, r := range reads {
					one, err := m.Session.ReadMany(ctx, r)
					if err != nil {
						all[i].Err = err
						continue
					}
					all[i] = one[0]
				}
				return all, nil
			}
		}},
		{"ReadMany shows changes before their events", group, "shows no change before its event", late},
	}
}
