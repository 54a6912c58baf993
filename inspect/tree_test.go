package inspect_test

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/inspect"
	"github.com/go-coord/coord/internal/coordtest"
)

// surveyPaths returns the path and recipe of each report, without the namespace.
func surveyPaths(w *world, v *inspect.Survey) []string {
	var list []string
	for _, in := range v.Reports {
		list = append(list, strings.TrimPrefix(in.Path, w.Path(""))+" "+in.Recipe)
	}
	return list
}

// sameReport compares two reports but for when and with how many reads they were made.
func sameReport(t *testing.T, got, want *inspect.Report) {
	t.Helper()
	a, b := *got, *want
	a.At, a.Reads, b.At, b.Reads = time.Time{}, 0, time.Time{}, 0
	if !reflect.DeepEqual(a, b) {
		t.Errorf("Tree:\n%s\nPath:\n%s", got, want)
	}
}

// wantSame checks that a slice has these elements.
func wantSame(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n got %q\nwant %q", what, got, want)
	}
}

// inspectForest makes recipes of several kinds at several depths. A lock has a queue among its
// nodes, and a queue has the nodes of its dead letters, which are not recipes of their own.
func inspectForest(w *world) {
	ctx := context.Background()
	inspectMake(w, backend.Persistent, "/app", "/app/empty-1", "/app/empty-1/x=coord recipe: barrier", "/app/config", "/app/config/n=7", "/app/config/text=hello", "/app/locks", "/app/queues")
	a := w.Open("a", nil)
	for _, name := range []string{"l-1", "l-2"} {
		coordtest.MustLock(w.T, coord.NewMutex(a, "/app/locks/"+name, &coord.MutexOptions{ID: "host-1"}))
	}
	coordtest.MustLock(w.T, coord.NewRWMutex(a, "/app/locks/l-2-x", nil))
	q := coord.NewQueue[int](a, "/app/queues/q", &coord.QueueOptions[int]{MaxAttempts: 1})
	mustPut(w.T, q, 1, 2)
	if err := mustTake(w.T, q, 1).Nack(0); err != nil { // to the dead letters
		w.T.Fatal(err)
	}
	mustPut(w.T, coord.NewQueue[int](a, "/app/locks/l-1/jobs", nil), 1, 1)
	if _, err := coord.NewElection(a, "/leader", &coord.ElectionOptions{ID: "host-1"}).Campaign(ctx); err != nil {
		w.T.Fatal(err)
	}
}

var forest = []string{
	"/app/config/n counter", "/app/config/text value", "/app/empty-1/x barrier", "/app/locks/l-1 mutex", "/app/locks/l-1/jobs queue",
	"/app/locks/l-2 mutex", "/app/locks/l-2-x rwmutex", "/app/queues/q queue", "/leader election",
}

func TestTreeFindsEachRecipeAndNotItsInnerNodes(t *testing.T) {
	onAll(t, func(w *world) {
		inspectForest(w)
		c := w.Open("inspector", nil)
		v, err := inspect.Tree(context.Background(), c, "/", nil)
		if err != nil {
			w.T.Fatal(err)
		}
		wantSame(w.T, "recipes", surveyPaths(w, v), forest)
		root := w.Path("")
		if root == "" {
			root = "/"
		}
		wantSame(w.T, "directories", v.Directories, []string{
			root, w.Path("/app"), w.Path("/app/config"), w.Path("/app/empty-1"), w.Path("/app/locks"), w.Path("/app/queues"),
		})
		if v.Path != root || v.Truncated || len(v.Notes) > 0 {
			w.T.Errorf("survey of %s, truncated %v, notes %q", v.Path, v.Truncated, v.Notes)
		}
		for _, in := range v.Reports {
			alone, err := inspect.Path(context.Background(), c, strings.TrimPrefix(in.Path, w.Path("")), nil)
			if err != nil {
				w.T.Fatal(err)
			}
			sameReport(w.T, in, alone)
		}
		for path, want := range map[string][]string{
			"/app/locks":       forest[3:7],
			"/app/locks/l-2":   forest[5:6],
			"/app/config/text": forest[1:2],
			"/nothing":         nil,
		} {
			v, err := inspect.Tree(context.Background(), c, path, nil)
			if err != nil {
				w.T.Fatal(err)
			}
			wantSame(w.T, path, surveyPaths(w, v), want)
		}
	})
}

// TestTreeDescribesEachSceneAsPathDoes: the reads that are made together answer each inspector
// with what it asked.
func TestTreeDescribesEachSceneAsPathDoes(t *testing.T) {
	for _, sc := range inspectScenes {
		t.Run(sc.name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				sc.setup(w)
				c := w.Open("inspector", nil)
				o := &inspect.Options{Data: sc.data}
				want, err := inspect.Path(context.Background(), c, sc.path, o)
				if err != nil {
					w.T.Fatal(err)
				}
				v, err := inspect.Tree(context.Background(), c, sc.path, o)
				if err != nil {
					w.T.Fatal(err)
				}
				switch want.Recipe {
				case "missing":
					wantSame(w.T, "recipes", surveyPaths(w, v), nil)
				case "directory":
					wantSame(w.T, "directories", v.Directories[:1], []string{sc.path})
				default:
					if len(v.Reports) == 0 {
						w.T.Fatalf("no report:\n%s", v)
					}
					sameReport(w.T, v.Reports[0], want)
				}
			})
		})
	}
}

// TestTheRequestsOfATree counts what a survey of many locks costs: with batches some requests for
// each step and not for each lock.
func TestTheRequestsOfATree(t *testing.T) {
	onAll(t, func(w *world) {
		const locks = 200
		inspectMake(w, backend.Persistent, "/locks")
		a := w.Open("a", nil)
		for i := range locks {
			coordtest.MustLock(w.T, coord.NewMutex(a, fmt.Sprintf("/locks/%03d", i), nil))
		}
		var requests, reads atomic.Int32
		c := w.Open("inspector", &backendtest.Hooks{Before: func(_ context.Context, call backendtest.Call) error {
			requests.Add(1)
			if call.Op != "sync" {
				reads.Add(int32(max(1, len(call.Reads))))
			}
			return nil
		}})
		v, err := inspect.Tree(context.Background(), c, "/locks", nil)
		if err != nil {
			w.T.Fatal(err)
		}
		if len(v.Reports) != locks || v.Reports[locks-1].Mutex.Holders != 1 {
			w.T.Fatalf("%d reports", len(v.Reports))
		}
		// The directory and each lock are read and listed, and each holder is read.
		if want := 2 + 3*locks; v.Reads != want || w.Fake && int(reads.Load()) != want {
			w.T.Errorf("%d reads were reported, %d made, want %d", v.Reads, reads.Load(), want)
		}
		want := int32(1 + 2 + 3*locks)
		if w.batches(c) {
			want = 1 + 2 + 3*2 // Sync, the directory, and three steps of 200 reads
		}
		if n := requests.Load(); w.Fake && n != want || n > want+5 {
			w.T.Errorf("%d calls, want %d", n, want)
		}
		w.T.Logf("figure: a survey of %d locks took %d calls of the session", locks, requests.Load())
	})
}

// TestTreeKeepsItsLimits: neither a wide nor a deep tree takes more reads than allowed.
func TestTreeKeepsItsLimits(t *testing.T) {
	onMemory(t, func(w *world) {
		inspectForest(w)
		c := w.Open("inspector", nil)
		whole, err := inspect.Tree(context.Background(), c, "/", nil)
		if err != nil {
			w.T.Fatal(err)
		}
		for most := 1; most <= whole.Reads; most++ {
			v, err := inspect.Tree(context.Background(), c, "/", &inspect.Options{MaxReads: most})
			if err != nil {
				w.T.Fatal(err)
			}
			if v.Reads > most || v.Truncated != (most < whole.Reads) {
				w.T.Errorf("MaxReads %d: %d reads, truncated %v", most, v.Reads, v.Truncated)
			}
		}
		v, err := inspect.Tree(context.Background(), c, "/", &inspect.Options{MaxDepth: 1})
		if err != nil {
			w.T.Fatal(err)
		}
		wantSame(w.T, "one level", surveyPaths(w, v), forest[8:])
		if !v.Truncated {
			w.T.Error("not truncated at the depth")
		}
	})
}

// TestTreeNotesWhatItMayNotRead: a part without permission does not end the survey.
func TestTreeNotesWhatItMayNotRead(t *testing.T) {
	onMemory(t, func(w *world) {
		inspectForest(w)
		denied := []string{"/app/config/text", "/app/locks/l-1", "/app/queues"}
		c := w.Open("inspector", &backendtest.Hooks{
			Results: func(call backendtest.Call, results []backend.ReadResult) {
				for i, r := range call.Reads {
					if slices.Contains(denied, r.Path) {
						results[i] = backend.ReadResult{Err: &backend.Error{Op: "get", Path: r.Path, Err: backend.ErrDenied}}
					}
				}
			},
			Before: func(_ context.Context, call backendtest.Call) error {
				if slices.Contains(denied, call.Path) && call.Op != "read" && call.Op != "exists" {
					return backend.ErrDenied
				}
				return nil
			},
		})
		v, err := inspect.Tree(context.Background(), c, "/", nil)
		if err != nil {
			w.T.Fatal(err)
		}
		wantSame(w.T, "recipes", surveyPaths(w, v), []string{
			"/app/config/n counter", "/app/empty-1/x barrier", "/app/locks/l-2 mutex", "/app/locks/l-2-x rwmutex", "/leader election",
		})
		wantSame(w.T, "notes", v.Notes, []string{
			"no permission to read /app/queues", "no permission to read /app/config/text", "no permission to read /app/locks/l-1",
		})
		_, err = inspect.Tree(context.Background(), c, "/app/queues", nil)
		coordtest.WantErr(w.T, err, coord.ErrDenied)
		in, err := inspect.Path(context.Background(), c, "/app", nil)
		if err != nil {
			w.T.Fatal(err)
		}
		if b := in.Directory.Below; len(b) != 4 || b[3].Name != "queues" || b[3].Recipe != "denied" {
			w.T.Errorf("below /app: %+v", b)
		}
	})
}

// TestTreeContinuesWhenNodesVanish: at each request all nodes are deleted, or the session is lost.
func TestTreeContinuesWhenNodesVanish(t *testing.T) {
	for n := 1; ; n++ {
		played := false
		for _, lose := range []bool{false, true} {
			onMemory(t, func(w *world) {
				inspectForest(w)
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
						w.Destroy("/app")
					}
					return nil
				}})
				v, err := inspect.Tree(context.Background(), c, "/", nil)
				if err != nil {
					w.T.Fatalf("at request %d: %v", n, err)
				}
				saneText(w.T, v.String())
				if lose {
					wantSame(w.T, "recipes", surveyPaths(w, v), forest)
				} else if last := v.Reports[len(v.Reports)-1]; last.Recipe != "election" {
					w.T.Errorf("at request %d:\n%s", n, v)
				}
			})
		}
		if !played || t.Failed() {
			t.Logf("%d requests", n-1)
			return
		}
	}
}

// TestTheRootOfTheServiceIsADirectory: a client without a namespace inspects "/", where the service
// has nodes of its own.
func TestTheRootOfTheServiceIsADirectory(t *testing.T) {
	onEach(t, func(w *world) {
		inspectMake(w, backend.Persistent, "/l")
		coordtest.MustLock(w.T, coord.NewMutex(w.Open("a", nil), "/l/x", nil))
		c := coordtest.Open(w.T, w.Link("inspector"), nil)
		in, err := inspect.Path(context.Background(), c, "/", nil)
		if err != nil {
			w.T.Fatal(err)
		}
		if in.Path != "/" || in.Recipe != "directory" || in.Directory.Nodes == 0 {
			w.T.Errorf("the root:\n%s", in)
		}
		for _, b := range in.Directory.Below {
			if (b.Name == "zookeeper") != (b.Recipe == "reserved") {
				w.T.Errorf("%s is %s: %s", b.Name, b.Recipe, b.Summary)
			}
		}
		v, err := inspect.Tree(context.Background(), c, "/", &inspect.Options{MaxReads: 1 << 20})
		if err != nil {
			w.T.Fatal(err)
		}
		if !slices.ContainsFunc(v.Reports, func(in *inspect.Report) bool { return in.Path == w.Path("/l/x") && in.Mutex.Holders == 1 }) {
			w.T.Errorf("%s is not in the survey of the root:\n%s", w.Path("/l/x"), v)
		}
	})
}

func TestTreeRefusesBadInput(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.Open("a", nil)
		for _, path := range []string{"", "x", "/_coord", "/a//b"} {
			_, err := inspect.Tree(context.Background(), c, path, nil)
			coordtest.WantErr(w.T, err, coord.ErrBadPath)
		}
		for _, o := range []*inspect.Options{{MaxReads: -1}, {MaxDepth: -1}} {
			_, err := inspect.Tree(context.Background(), c, "/a", o)
			coordtest.WantErr(w.T, err, coord.ErrInvalid)
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, err := inspect.Tree(ctx, c, "/a", nil)
		coordtest.WantErr(w.T, err, context.Canceled)
		c.Close()
		_, err = inspect.Tree(context.Background(), c, "/a", nil)
		coordtest.WantErr(w.T, err, coord.ErrClosed)
	})
}

// TestTheJSONOfASurveyCanBeReadAgain: an empty survey has lists, not null.
func TestTheJSONOfASurveyCanBeReadAgain(t *testing.T) {
	onMemory(t, func(w *world) {
		inspectForest(w)
		c := w.Open("inspector", nil)
		for _, path := range []string{"/app", "/nothing"} {
			v, err := inspect.Tree(context.Background(), c, path, nil)
			if err != nil {
				w.T.Fatal(err)
			}
			js, err := json.Marshal(v)
			if err != nil {
				w.T.Fatal(err)
			}
			var again inspect.Survey
			if err := json.Unmarshal(js, &again); err != nil {
				w.T.Fatal(err)
			}
			if again.String() != v.String() || strings.Contains(string(js), "null") {
				w.T.Errorf("after a round trip through JSON:\n%s\nwant\n%s\n%s", again.String(), v, js)
			}
		}
	})
}
