package inspect_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"unicode/utf8"

	"github.com/go-zookeeper/zk"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/inspect"
	"github.com/go-coord/coord/internal/coordtest"
)

// sanePage fails the test if the text could confuse a terminal or names no recipe.
func sanePage(t *testing.T, in *inspect.Report) {
	t.Helper()
	text := in.String()
	if in.Recipe == "" || in.Summary == "" || !utf8.ValidString(text) {
		t.Errorf("recipe %q, summary %q:\n%q", in.Recipe, in.Summary, text)
	}
	saneText(t, text)
}

func saneText(t *testing.T, text string) {
	t.Helper()
	for _, r := range text {
		if r != '\n' && !strconv.IsPrint(r) {
			t.Errorf("the text has %q:\n%s", r, text)
			return
		}
	}
}

// TestInspectSurvivesHostileNodes: whatever names and data outsiders create, Inspect returns a
// text that is safe to print, within its limit of reads.
func TestInspectSurvivesHostileNodes(t *testing.T) {
	guid := inspectID
	names := []string{
		"lock-0000000001", "_c_" + guid + "-lock-0000000000", "x-lock--000000001", "__lock__0000000002", "lock-99999999999", "lock-",
		"_c_" + guid + "-latch-0000000001", "_c_" + guid + "-ready-0000000001", "_c_" + guid + "-ready-0000000009",
		"__READ__0000000001", "__WRIT__0000000001", "__READ__-2147483648",
		"_c_" + guid + "-member-a-0000000001", "_c_" + guid + "-member-lock--0000000003", "_c_" + guid + "-member-0000000001", "_c_" + guid + "-guest-0000000001",
		"limit", "requests", "permit-2147483647-0000000001", "permit-0-0000000001", "permit-1-0000000002",
		"members", "ready", "items", "waiters", "dead", "b-0-0", "b--60000-1", "b-9223372036854775807-1", "b-x-1",
		"i-" + guid + "-0-0000000000", "i-" + guid + "-9223372036854775807-0000000001", "i-" + guid + "--5-0000000001", "s-" + guid, "m-" + guid + "-" + guid, "d-" + guid + "-9223372036854775807", "d-" + guid + "-9",
		"tx", "sites", "serving", guid + "~" + guid, "a~" + guid, "decision-1", "yes-1-a", "open-" + guid, "live-" + guid, "take-0000000001", "README", "ü", "é", `"`, `\`, " ",
	}
	data := []string{
		"", "7", "-1", " 3\n", "99999999999999999999", "unlock", "__REVOKE__", `{"coord-revoke":{"by":"\u202e","at":9223372036854775807,"force":true},"data":"AAAA"}`,
		`{"coord-revoke":`, `{"coord-candidate":{"id":"\u0000\u001b[2J","data":"` + strings.Repeat("QUFB", 100) + `"}}`, "\x1b]0;title\x07\xff\xfe", strings.Repeat("é", 400),
		`{"mark":"x","sites":["a","/","\u202e"],"deadline":9223372036854775807,"payload":"AAAA"}`, `{"mark":"` + guid + `","sites":null,"deadline":-1}`,
		`{"commit":true,"by":"\n","reason":"\u001b"}`, "yes", "no\n\x1b", "_c_" + guid + "-member-0000000001", "\x00",
	}
	onMemory(t, func(w *world) {
		recipes := make(map[string]int)
		seeds := uint64(300)
		if coordtest.Long() {
			seeds = 5000
		}
		for seed := range seeds {
			rng := rand.New(rand.NewPCG(seed, 1))
			st := memory.New(nil)
			c := coordtest.Open(w.T, st, nil)
			s, err := st.Open(context.Background())
			if err != nil {
				w.T.Fatal(err)
			}
			paths := []string{"/h"}
			if _, err := s.Commit(context.Background(), backend.Create("/h", nil, backend.Persistent)); err != nil {
				w.T.Fatal(err)
			}
			// Few names produce trees that look like recipes, many produce mixtures.
			few := slices.Clone(names)
			rng.Shuffle(len(few), func(i, j int) { few[i], few[j] = few[j], few[i] })
			few = few[:1+rng.IntN(len(few))]
			for range 1 + rng.IntN(60) {
				p := paths[rng.IntN(len(paths))] + "/" + few[rng.IntN(len(few))]
				mode := backend.Persistent
				if rng.IntN(4) == 0 {
					mode = backend.Ephemeral
				}
				_, err := s.Commit(context.Background(), backend.Create(p, []byte(data[rng.IntN(len(data))]), mode))
				if err == nil && strings.Count(p, "/") < 5 {
					paths = append(paths, p)
				}
			}
			for _, o := range []*inspect.Options{nil, {Data: true}, {MaxReads: 1 + rng.IntN(10)}} {
				for _, p := range paths {
					if strings.HasSuffix(p, "/"+`"`) {
						continue
					}
					in, err := inspect.Path(context.Background(), c, p, o)
					if err != nil {
						w.T.Fatalf("seed %d: %s: %v", seed, p, err)
					}
					recipes[in.Recipe]++
					sanePage(w.T, in)
					if o != nil && o.MaxReads > 0 && in.Reads > o.MaxReads+1 {
						w.T.Errorf("seed %d: %s: %d reads, at most %d were allowed", seed, p, in.Reads, o.MaxReads)
					}
				}
			}
			for _, o := range []*inspect.Options{nil, {MaxReads: 1 + rng.IntN(10)}, {MaxDepth: 1}} {
				v, err := inspect.Tree(context.Background(), c, "/", o)
				if err != nil {
					w.T.Fatalf("seed %d: %v", seed, err)
				}
				for _, in := range v.Reports {
					sanePage(w.T, in)
				}
				saneText(w.T, v.String())
				if o != nil && o.MaxReads > 0 && v.Reads > o.MaxReads {
					w.T.Errorf("seed %d: %d reads, at most %d were allowed", seed, v.Reads, o.MaxReads)
				}
			}
			s.Close()
			c.Close()
			if w.T.Failed() {
				w.T.Fatalf("seed %d", seed)
			}
		}
		w.T.Logf("figure: %d hostile trees inspected, reported as %v", seeds, recipes)
	})
}

// TestInspectSurvivesNamesThatCannotBeRead: other clients can create nodes whose names coord's
// path rules refuse.
func TestInspectSurvivesNamesThatCannotBeRead(t *testing.T) {
	onMemory(t, func(w *world) {
		coordtest.MustLock(w.T, coord.NewMutex(w.Open("a", nil), "/m", nil))
		c := w.Open("inspector", &backendtest.Hooks{Names: func(_ backendtest.Call, names []string) []string {
			return append(names, "\u202elock-0000000009", "a\u200b")
		}})
		in, err := inspect.Path(context.Background(), c, "/m", nil)
		if err != nil {
			w.T.Fatal(err)
		}
		sanePage(w.T, in)
		// It may count as a contender that cannot be read, or as foreign.
		list := in.Mutex.Contenders
		if len(list)+in.ForeignCount != 3 || !list[0].Holds || list[0].Unread != "" || len(list) == 2 && list[1].Unread == "" {
			w.T.Errorf("%d contenders:\n%s", len(list), in)
		}
	})
}

// TestInspectContinuesWhenNodesVanish plays each scene many times: at each request of Inspect
// all nodes are deleted, or the session is lost.
func TestInspectContinuesWhenNodesVanish(t *testing.T) {
	for _, sc := range inspectScenes {
		t.Run(sc.name, func(t *testing.T) {
			for n := 1; ; n++ {
				played := false
				for _, lose := range []bool{false, true} {
					onMemory(t, func(w *world) {
						sc.setup(w)
						w.Settle()
						var calls atomic.Int32
						link := w.Link("inspector")
						c := w.Open("inspector", &backendtest.Hooks{Before: func(_ context.Context, call backendtest.Call) error {
							if int(calls.Add(1)) != n {
								return nil
							}
							if played = true; lose {
								link.Expire(call.Session.ID())
							} else {
								w.Destroy(w.Path("/" + strings.Split(sc.path, "/")[1]))
							}
							return nil
						}})
						in, err := inspect.Path(context.Background(), c, sc.path, &inspect.Options{Data: sc.data})
						if err != nil {
							w.T.Fatalf("at request %d: %v", n, err)
						}
						sanePage(w.T, in)
						if lose {
							inspectNormal(in, w.Path(""))
							compareInspection(w, sc.name, in)
						}
					})
				}
				if !played || t.Failed() {
					t.Logf("%d requests", n-1)
					return
				}
			}
		})
	}
}

// TestInspectSeesADowngradeAsOneLock: the writer's node is deleted between the list and the
// read; the reader's node in its place is not in that list.
func TestInspectSeesADowngradeAsOneLock(t *testing.T) {
	onEach(t, func(w *world) {
		rw := coord.NewRWMutex(w.Open("a", nil), "/rw", nil)
		h := coordtest.MustLock(w.T, rw)
		w.inLineBehind("/rw")
		writer := h.Path()
		var once atomic.Bool
		c := w.Open("inspector", &backendtest.Hooks{Before: func(_ context.Context, call backendtest.Call) error {
			reads := call.Op == "get" || call.Op == "read"
			if reads && call.Path == writer && once.CompareAndSwap(false, true) {
				return rw.Downgrade(context.Background(), h)
			}
			return nil
		}})
		in, err := inspect.Path(context.Background(), c, "/rw", nil)
		if err != nil {
			w.T.Fatal(err)
		}
		l := in.RWMutex
		if l == nil || len(l.Contenders) != 2 || l.Contenders[0].Role != "reader" || !l.Contenders[0].Holds || l.Contenders[1].Holds {
			w.T.Errorf("after the downgrade:\n%s", in)
		}
	})
}

// inLineBehind lets a writer wait behind the holder.
func (w *world) inLineBehind(path string) {
	c := w.Open("behind", nil)
	w.spawn(func(ctx context.Context) { _, _ = coord.NewRWMutex(c, path, nil).Lock(ctx) })
	w.Eventually("a writer waits", func() bool { return len(w.Children(path)) == 2 })
}

// TestInspectStopsAtItsLimit: a long queue costs no more reads than allowed, and the text says
// that there are more contenders.
func TestInspectStopsAtItsLimit(t *testing.T) {
	onAll(t, func(w *world) {
		inspectMake(w, backend.Persistent, "/m")
		var paths []string
		for range 30 {
			paths = append(paths, "/m/_c_"+inspectID+"-lock-")
		}
		inspectMake(w, backend.EphemeralSequential, paths...)
		var calls atomic.Int32
		c := w.Open("inspector", &backendtest.Hooks{Before: func(context.Context, backendtest.Call) error { calls.Add(1); return nil }})
		in, err := inspect.Path(context.Background(), c, "/m", &inspect.Options{MaxReads: 11})
		if err != nil {
			w.T.Fatal(err)
		}
		text := in.String()
		wanted := int32(1 + 11) // the first is the Sync
		if w.batches(c) {
			wanted = 1 + 1 + 1
		}
		if n := calls.Load(); n != wanted || in.Reads != 11 {
			w.T.Errorf("%d requests, want %d; %d reads were reported", n, wanted, in.Reads)
		}
		if !in.Truncated || len(in.Mutex.Contenders) != 10 || in.Mutex.Waiting != 29 || in.Mutex.Holders != 1 ||
			!strings.Contains(text, "… and 20 more") || !strings.Contains(text, "truncated: ") {
			w.T.Errorf("%d contenders:\n%s", len(in.Mutex.Contenders), text)
		}
	})
}

// TestInspectReportsMissingPermissions: nodes that may not be read are reported, and nothing of
// them is shown.
func TestInspectReportsMissingPermissions(t *testing.T) {
	t.Parallel()
	w := onServer(t, zookeeper.Options{})
	c := w.Open("a", nil)
	coordtest.WithPermissions(t, w.Path("/closed"), zk.PermCreate)
	_, err := inspect.Path(context.Background(), c, "/closed", nil)
	var e *backend.Error
	if !errors.Is(err, coord.ErrDenied) || !errors.As(err, &e) || e.Op != "inspect" {
		t.Errorf("the path itself: %v", err)
	}
	coordtest.WithPermissions(t, w.Path("/m"), zk.PermAll)
	coordtest.WithPermissions(t, w.Path("/m/lock-0000000001"), zk.PermCreate)
	coordtest.WithPermissions(t, w.Path("/s"), zk.PermAll)
	coordtest.WithPermissions(t, w.Path("/s/limit"), zk.PermCreate)
	coordtest.WithPermissions(t, w.Path("/s/requests"), zk.PermAll)
	coordtest.WithPermissions(t, w.Path("/s/requests/permit-1-0000000001"), zk.PermCreate)
	coordtest.WithPermissions(t, w.Path("/q"), zk.PermAll)
	coordtest.WithPermissions(t, w.Path("/q/items"), zk.PermCreate)
	for path, want := range map[string][]string{
		"/m": {"mutex: held", "no permission"},
		"/s": {"semaphore: 0 of an unknown number of permits", "the limit cannot be read: no permission"},
		"/q": {"queue: 0 items", "no permission to read items"},
	} {
		in, err := inspect.Path(context.Background(), c, path, &inspect.Options{Data: true})
		if err != nil {
			t.Error(err)
			continue
		}
		for _, text := range want {
			if !strings.Contains(in.String(), text) {
				t.Errorf("%s: no %q in\n%s", path, text, in)
			}
		}
	}
}

// TestInspectShowsNoDataUnlessAsked: no data of users is in the text or the JSON of any scene.
func TestInspectShowsNoDataUnlessAsked(t *testing.T) {
	for _, sc := range inspectScenes {
		t.Run(sc.name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				sc.setup(w)
				w.Settle()
				in, err := inspect.Path(context.Background(), w.Open("inspector", nil), sc.path, nil)
				if err != nil {
					w.T.Fatal(err)
				}
				text := fmt.Sprintf("%s %+v", in, in)
				for _, secret := range []string{"client a", "10.0.0", "caller", "example:80", "password", "4711", "job ", "move 5"} {
					if strings.Contains(text, secret) {
						w.T.Errorf("%q is shown:\n%s", secret, in)
					}
				}
				walkData(w.T, in)
			})
		})
	}
}

// walkData fails the test if any data is kept.
func walkData(t *testing.T, in *inspect.Report) {
	t.Helper()
	walkInspection(reflect.ValueOf(in), "", func(field string, v reflect.Value) {
		if data, ok := v.Interface().([]byte); ok && len(bytes.TrimSpace(data)) > 0 {
			t.Errorf("%s holds %q", field, data)
		}
	})
}

// TestInspectNamesOneStrangeRecord beside good ones.
func TestInspectNamesOneStrangeRecord(t *testing.T) {
	onMemory(t, func(w *world) {
		inspectTwoPhase(w)
		inspectMake(w, backend.Persistent, `/app/tx/tx/s={`)
		in, err := inspect.Path(context.Background(), w.Open("inspector", nil), "/app/tx", nil)
		if err != nil {
			w.T.Fatal(err)
		}
		if want := "1 node among the records is none: s"; !slices.Contains(in.Notes, want) {
			w.T.Errorf("notes %q, want %q", in.Notes, want)
		}
	})
}

// TestInspectShowsADeletedDecision as a transaction in doubt.
func TestInspectShowsADeletedDecision(t *testing.T) {
	onMemory(t, func(w *world) {
		inspectTwoPhase(w)
		// What an abort leaves whose proposer has returned and whose decision was deleted then.
		s := w.Session("vandal")
		for _, name := range w.Children("/app/tx/tx/t-1") {
			if strings.HasPrefix(name, "open-") {
				if _, err := s.Commit(context.Background(), backend.Delete("/app/tx/tx/t-1/"+name, backend.AnyVersion)); err != nil {
					w.T.Fatal(err)
				}
			}
		}
		c := w.Open("inspector", nil)
		in, err := inspect.Path(context.Background(), c, "/app/tx", nil)
		if err != nil {
			w.T.Fatal(err)
		}
		if list := in.TwoPhase.Transactions; len(list) != 1 || list[0].State != "in doubt" || list[0].InDoubt.IsZero() {
			w.T.Errorf("%+v", list)
		}
		if in, err = inspect.Path(context.Background(), c, "/app/tx/sites/a", nil); err != nil {
			w.T.Fatal(err)
		}
		if list := in.Inbox.Branches; len(list) != 1 || list[0].State != "in doubt" {
			w.T.Errorf("%+v", list)
		}
	})
}

// TestARecordThatNamesNoNodesIsNone: a node that an outsider has put among the records does not
// keep a Coordinator from listing the others.
func TestARecordThatNamesNoNodesIsNone(t *testing.T) {
	onMemory(t, func(w *world) {
		inspectTwoPhase(w)
		inspectMake(w, backend.Persistent,
			`/app/tx/tx/s={"mark":"`+inspectID+`","sites":["a","/"],"deadline":1}`,
			`/app/tx/tx/m={"mark":"/","sites":["a"],"deadline":1}`)
		co := coord.NewCoordinator[string](w.Open("co 2", nil), "/app/tx", nil)
		list, err := co.List(context.Background())
		if err != nil || len(list) != 1 || list[0].ID != "t-1" {
			w.T.Errorf("%+v, %v", list, err)
		}
		_, err = co.Status(context.Background(), "s")
		coordtest.WantErr(w.T, err, coord.ErrDecode)
	})
}

// TestInspectCallsNoRoundStaleThatEndedInOrder: the members leave, and delete ready, between
// the reads of the two.
func TestInspectCallsNoRoundStaleThatEndedInOrder(t *testing.T) {
	onMemory(t, func(w *world) {
		inspectMake(w, backend.Persistent, "/d", "/d/members") // no containers
		entered := make(chan *coord.Entry, 2)
		for i := range 2 {
			d := coord.NewDoubleBarrier(w.Open(fmt.Sprint(i), nil), "/d", 2, nil)
			w.spawn(func(ctx context.Context) {
				e, err := d.Enter(ctx)
				if err != nil {
					w.T.Error(err)
				}
				entered <- e
			})
		}
		es := []*coord.Entry{<-entered, <-entered}
		var once atomic.Bool
		c := w.Open("inspector", &backendtest.Hooks{Before: func(_ context.Context, call backendtest.Call) error {
			if call.Op != "children" || call.Path != w.Path("/d/members") || !once.CompareAndSwap(false, true) {
				return nil
			}
			for _, e := range es {
				w.spawn(func(ctx context.Context) { _ = e.Leave(ctx) })
			}
			w.Eventually("all have left", func() bool { return len(w.Children("/d/members")) == 0 && len(w.Children("/d")) == 1 })
			return nil
		}})
		in, err := inspect.Path(context.Background(), c, "/d", nil)
		if err != nil {
			w.T.Fatal(err)
		}
		if d := in.DoubleBarrier; d == nil || d.Stale || d.Open || d.N != 0 || d.Left != 0 || !d.Since.IsZero() || !once.Load() {
			w.T.Errorf("after the round:\n%s", in)
		}
	})
}

// TestInspectReadsTheClaimsOfAQueueAtOnce: with batches the claims, the attempts and the data
// of the items are one request.
func TestInspectReadsTheClaimsOfAQueueAtOnce(t *testing.T) {
	onAll(t, func(w *world) {
		q := coord.NewQueue(w.Open("a", nil), "/q", &coord.QueueOptions[int]{})
		mustPut(w.T, q, 1, 7)
		for i := range 5 {
			defer mustTake(w.T, q, i+1).Ack()
		}
		var calls atomic.Int32
		c := w.Open("inspector", &backendtest.Hooks{Before: func(context.Context, backendtest.Call) error { calls.Add(1); return nil }})
		in, err := inspect.Path(context.Background(), c, "/q", &inspect.Options{Data: true})
		if err != nil {
			w.T.Fatal(err)
		}
		if in.Queue == nil || len(in.Queue.Claims) != 5 || in.Queue.Next == nil || string(in.Queue.Next.Data) != "6" {
			w.T.Fatalf("%s", in)
		}
		for i, cl := range in.Queue.Claims {
			if string(cl.Item.Data) != fmt.Sprint(i+1) || cl.Item.Attempts != 1 || cl.Session == "" || cl.Since.IsZero() || cl.Item.Since.IsZero() {
				w.T.Errorf("claim %d: %+v", i, cl)
			}
		}
		const nodes = 3*5 + 1 // a claim, its attempts and its item; and the next item
		wanted := int32(1 + in.Reads)
		if w.batches(c) {
			wanted -= nodes - 1
		}
		if n := calls.Load(); n != wanted {
			w.T.Errorf("%d requests, want %d; %d reads were reported", n, wanted, in.Reads)
		}
	})
}

// TestInspectListsTheBucketsOfAQueueAtOnce, up to its limit. It counts the clients that wait in
// slots too.
func TestInspectListsTheBucketsOfAQueueAtOnce(t *testing.T) {
	onAll(t, func(w *world) {
		const priorities = 30
		q := coord.NewPriorityQueue[int](w.Open("a", nil), "/q", nil)
		for i := range priorities {
			if _, err := q.Put(context.Background(), int64(i), i); err != nil {
				w.T.Fatal(err)
			}
		}
		inspectMake(w, backend.Persistent, "/q/waiters")
		inspectMake(w, backend.Ephemeral, "/q/waiters/slot-0", "/q/waiters/slot-2")
		var calls atomic.Int32
		c := w.Open("inspector", &backendtest.Hooks{Before: func(context.Context, backendtest.Call) error { calls.Add(1); return nil }})
		const fixed = 3 // the lists of the path, items and waiters
		for limit, items := range map[int]int{0: priorities, fixed + 12: 12} {
			calls.Store(0)
			in, err := inspect.Path(context.Background(), c, "/q", &inspect.Options{MaxReads: limit})
			if err != nil {
				w.T.Fatal(err)
			}
			if in.Recipe != "priorityqueue" || in.Queue.Items != items || in.Queue.Ready != items || in.Queue.Takers != 2 || in.ForeignCount != 0 || in.Truncated != (limit > 0) {
				w.T.Errorf("with a limit of %d: %+v\n%s", limit, in.Queue, in)
			}
			wanted := int32(1 + in.Reads)
			if w.batches(c) {
				wanted -= int32(items) - 1
			}
			if n := calls.Load(); n != wanted {
				w.T.Errorf("%d requests, want %d; %d reads were reported", n, wanted, in.Reads)
			}
		}
	})
}

// TestInspectShowsAHolderOfMoreThanALoweredLimit: a request that was granted without a wait has
// no mark.
func TestInspectShowsAHolderOfMoreThanALoweredLimit(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		s := coord.NewSemaphore(w.Open("a", nil), "/s", 3, nil)
		h, err := s.Acquire(ctx, 2)
		if err != nil {
			w.T.Fatal(err)
		}
		defer h.Release()
		const note = "the limit was changed after some of the waiters had arrived"
		c := w.Open("inspector", nil)
		for limit, want := range map[int]bool{5: false, 1: true} {
			if err := s.SetLimit(ctx, limit); err != nil {
				w.T.Fatal(err)
			}
			in, err := inspect.Path(ctx, c, "/s", nil)
			if err != nil {
				w.T.Fatal(err)
			}
			if strings.Contains(in.String(), note) != want {
				w.T.Errorf("with a limit of %d:\n%s", limit, in)
			}
		}
	})
}

// TestInspectReportsFewStrayAnnouncements, however many there are.
func TestInspectReportsFewStrayAnnouncements(t *testing.T) {
	onMemory(t, func(w *world) {
		inspectMake(w, backend.Persistent, "/e", "/e/_c_"+inspectID+"-latch-0000000001")
		for i := range 300 {
			inspectMake(w, backend.Persistent, fmt.Sprintf("/e/_c_%08d-89ab-8def-8123-456789abcdef-ready-%010d", i, i))
		}
		in, err := inspect.Path(context.Background(), w.Open("inspector", nil), "/e", nil)
		if err != nil {
			w.T.Fatal(err)
		}
		if len(in.Notes) > 10 || !strings.Contains(in.String(), "295 more announcements") {
			w.T.Errorf("%d notes:\n%.2000s", len(in.Notes), in)
		}
	})
}
