package backendtest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/go-coord/coord/backend"
)

func concurrencyLeaves() []leaf {
	return []leaf{
		{"of many sessions with mixed operations loses and doubles nothing", func(s *scene) {
			const sessions, workers, rounds, nodes = 8, 2, 40, 3
			setup := s.open("setup")
			dir := setup.create("dir", "", backend.Persistent)
			var counters [nodes]string
			for i := range counters {
				counters[i] = setup.create(fmt.Sprint("counter", i), "", backend.Persistent)
			}
			var sets [nodes]atomic.Int64
			var mu sync.Mutex
			created := make(map[string]int64) // path to session
			creates, removes := 0, 0
			var group sync.WaitGroup
			for i := range sessions {
				c := s.open(fmt.Sprint("link", i%4))
				c.sync()
				for j := range workers {
					rng := rand.New(rand.NewPCG(uint64(i), uint64(j)))
					group.Go(func() {
						var own []string
						for range rounds {
							k := rng.IntN(nodes)
							n := counters[k]
							var err error
							switch rng.IntN(8) {
							case 0: // a set that must succeed
								if _, err = c.Commit(s.ctx, backend.SetData(n, []byte("x"), backend.AnyVersion)); err == nil {
									sets[k].Add(1)
								}
							case 1, 2: // compare and set
								var stat backend.Stat
								if _, stat, err = c.Get(s.ctx, n, nil); err != nil {
									break
								}
								_, err = c.Commit(s.ctx, backend.SetData(n, nil, stat.Version))
								if err == nil {
									sets[k].Add(1)
								} else if errors.Is(err, backend.ErrBadVersion) {
									err = nil
								}
							case 3, 4: // a new child and a set, together
								mode := []backend.CreateMode{backend.PersistentSequential, backend.EphemeralSequential}[rng.IntN(2)]
								var r []backend.Result
								r, err = c.Commit(s.ctx, backend.Create(dir+"/n-", nil, mode), backend.SetData(n, nil, backend.AnyVersion))
								if err != nil {
									break
								}
								sets[k].Add(1)
								own = append(own, r[0].Path)
								mu.Lock()
								creates++
								if other, ok := created[r[0].Path]; ok {
									s.Errorf("%s was created by session %d and by %d", r[0].Path, other, c.ID())
								}
								created[r[0].Path] = c.ID()
								mu.Unlock()
							case 5: // delete a child of its own
								if len(own) == 0 {
									break
								}
								if _, err = c.Commit(s.ctx, backend.Delete(own[0], 0)); err == nil {
									own = own[1:]
									mu.Lock()
									removes++
									mu.Unlock()
								}
							case 6: // all or nothing: the set must not be applied
								_, err = c.Commit(s.ctx, backend.SetData(n, nil, backend.AnyVersion), backend.Check(s.path("missing"), 0))
								if errors.Is(err, backend.ErrNotFound) {
									err = nil
								} else if err == nil {
									err = errors.New("a check of a missing node passed")
								}
							case 7: // a watch that is stopped, and a listing
								w := backend.NewWatch()
								var names []string
								var stat backend.Stat
								names, stat, err = c.Children(s.ctx, dir, w)
								w.Stop()
								if err == nil && len(names) != int(stat.NumChildren) {
									err = fmt.Errorf("%d names, and the Stat has %d", len(names), stat.NumChildren)
								}
							}
							if err != nil {
								s.Errorf("session %d: %v", i, err)
								return
							}
						}
					})
				}
			}
			group.Wait()
			setup.sync()
			for k, n := range counters {
				if stat := setup.stat(n, nil); int64(stat.Version) != sets[k].Load() {
					s.Errorf("%s has version %d after %d successful sets", n, stat.Version, sets[k].Load())
				}
			}
			names, stat := setup.children(dir, nil)
			if len(names) != creates-removes || int(stat.NumChildren) != creates-removes || stat.Cversion != 0 && int(stat.Cversion) != 2*creates-len(names) {
				s.Errorf("%d children with %+v after %d creates and %d deletes", len(names), stat, creates, removes)
			}
			for _, name := range names {
				if created[dir+"/"+name] == 0 {
					s.Errorf("no session has created %s", name)
				}
			}
			if creates == 0 || removes == 0 {
				s.Error("the test did nothing")
			}
		}},
		{"of one session's calls gives each its own reply", func(s *scene) {
			c := s.open("a")
			const workers, rounds = 16, 20
			var group sync.WaitGroup
			for i := range workers {
				group.Go(func() {
					v := fmt.Sprint("value-", i)
					p := s.path(v)
					if _, err := c.Commit(s.ctx, backend.Create(p, []byte(v), backend.Persistent)); err != nil {
						s.Errorf("create: %v", err)
						return
					}
					for range rounds {
						data, _, err := c.Get(s.ctx, p, nil)
						if err != nil || string(data) != v {
							s.Errorf("read %q of %s: %v", data, p, err)
						}
						r, err := c.Commit(s.ctx, backend.Create(p+"/"+v+"-", nil, backend.EphemeralSequential))
						if err != nil || !strings.HasPrefix(r[0].Path, p+"/"+v+"-") {
							s.Errorf("create below %s returned %v, %v", p, r, err)
						}
						_, err = c.Exists(s.ctx, p+"/missing", nil)
						if !errors.Is(err, backend.ErrNotFound) {
							s.Errorf("exists of a missing node: %v", err)
						}
					}
					names, stat, err := c.Children(s.ctx, p, nil)
					if err != nil || len(names) != rounds || int(stat.NumChildren) != rounds {
						s.Errorf("%d children of %s with %+v, %v; want %d", len(names), p, stat, err, rounds)
					}
				})
			}
			group.Wait()
		}},
		{"of faults and commits of one link applies each certain commit once", func(s *scene) {
			c := s.open("a")
			const workers, rounds = 4, 25
			var group sync.WaitGroup
			var applied, uncertain atomic.Int64
			dir := c.create("dir", "", backend.Persistent)
			for i := range workers {
				group.Go(func() {
					for j := range rounds {
						if i == 0 && j%5 == 0 {
							faults()[j/5%2].drop(c.link)
						}
						_, err := c.Commit(s.ctx, backend.Create(dir+"/n-", nil, backend.PersistentSequential))
						switch {
						case err == nil:
							applied.Add(1)
						case errors.Is(err, backend.ErrUncertain):
							uncertain.Add(1)
						default:
							s.Errorf("create: %v", err)
						}
						if _, _, err := c.Children(s.ctx, dir, nil); err != nil {
							s.Errorf("children: %v", err)
						}
					}
				})
			}
			group.Wait()
			if c.sync(); c.Err() != nil {
				s.Fatalf("the session ended: %v", c.Err())
			}
			names, _ := c.children(dir, nil)
			if n := int64(len(names)); n < applied.Load() || n > applied.Load()+uncertain.Load() {
				s.Fatalf("%d nodes of %d successful and %d uncertain creates", n, applied.Load(), uncertain.Load())
			}
			if applied.Load() == 0 {
				s.Fatal("no commit succeeded")
			}
		}},
	}
}
