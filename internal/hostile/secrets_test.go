package hostile_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/trace"
)

// Secrets, which must not show in any log, error or event.
const (
	secretPassword = "Pw-5e7tinel-of-the-digest"
	secretPayload  = "Pl-5e7tinel-of-the-payload"
	secretNumber   = "770055990011223344"
)

// disclosures returns the forms in which a secret would be found.
func disclosures() map[string]string {
	forms := make(map[string]string)
	for _, s := range []string{secretPassword, secretPayload} {
		forms[s] = s
		forms["the base64 of "+s] = base64.StdEncoding.EncodeToString([]byte(s))[:30]
		forms["the hexadecimal of "+s] = hex.EncodeToString([]byte(s))
		forms["the bytes of "+s] = strings.Trim(fmt.Sprint([]byte(s)), "[]")
	}
	forms[secretNumber] = secretNumber
	return forms
}

// told records all output of the library: logs of every level, events, errors.
type told struct {
	mu    sync.Mutex
	text  bytes.Buffer
	kinds map[string]int
}

func (x *told) add(kind, text string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.kinds == nil {
		x.kinds = make(map[string]int)
	}
	x.kinds[kind]++
	fmt.Fprintf(&x.text, "%s: %s\n", kind, text)
}

// Write makes x the output of a logger.
func (x *told) Write(p []byte) (int, error) {
	x.add("log", string(p))
	return len(p), nil
}

func (x *told) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(x, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (x *told) trace(_ context.Context, e trace.Event) {
	x.add("event", fmt.Sprintf("%T %+v %#v", e, e, e))
}

// fault records an error, in every form in which it can be printed, and the error in it.
func (x *told) fault(err error) {
	if err == nil {
		return
	}
	x.add("error", fmt.Sprintf("%v %+v %q", err, err, err))
	var e *backend.Error
	if errors.As(err, &e) {
		x.add("error", fmt.Sprintf("%+v %#v", *e, *e))
	}
}

// search fails the test if a secret was recorded.
func (x *told) search(t *testing.T) {
	t.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()
	for line := range strings.Lines(x.text.String()) {
		for what, form := range disclosures() {
			if strings.Contains(line, form) {
				t.Errorf("%s is shown in %.600s", what, line)
				return
			}
		}
	}
	t.Logf("figure: %d bytes recorded and searched: %v", x.text.Len(), x.kinds)
}

// On a real server with credentials, with every recipe and every fault of the links, no log (at
// level Debug, that of the zk client included), error or event shows the password or users'
// data.
func TestNoSecretIsShownUnderFaults(t *testing.T) {
	t.Parallel()
	var x told
	w := coordtest.OnServer(t, zookeeper.Options{Digest: "user:" + secretPassword, Logger: x.logger()})
	client := func(name string) *coord.Client {
		return coordtest.Open(t, w.Link(name), &coord.Options{Namespace: w.Path(""), Logger: x.logger(), Trace: x.trace})
	}
	a, b := client("a"), client("b")
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		r := rand.New(rand.NewPCG(7, 7))
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(30+r.IntN(60)) * time.Millisecond):
			}
			name, c := "a", a
			if r.IntN(2) == 0 {
				name, c = "b", b
			}
			l := w.Link(name)
			switch r.IntN(5) {
			case 0:
				l.Partition()
				time.Sleep(20 * time.Millisecond)
				l.Heal()
			case 1, 2:
				l.DropNextReply()
			case 3:
				l.DropNextRequest()
			case 4:
				if r.IntN(3) > 0 {
					continue
				}
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				if s, err := c.Session(ctx); err == nil {
					l.Expire(s.ID())
				}
				cancel()
			}
		}
	})
	runs := 0
	rounds := 1
	if coordtest.Long() {
		rounds = 20
	}
	for i := range rounds {
		for j, y := range fullUses() {
			ctx, cancel := context.WithTimeout(context.Background(), 800*time.Millisecond)
			err := y.run(ctx, &useRun{w: w, a: a, b: b, path: fmt.Sprintf("/r%d-%d", i, j), payload: secretPayload})
			cancel()
			x.fault(err)
			runs++
		}
	}
	close(stop)
	wg.Wait()
	// Without contact each of them fails, however quick the machine is.
	w.Link("a").Partition()
	w.Link("b").Partition()
	for j, y := range fullUses() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		x.fault(y.run(ctx, &useRun{w: w, a: a, b: b, path: fmt.Sprintf("/cut-%d", j), payload: secretPayload}))
		cancel()
	}
	w.Link("a").Heal()
	w.Link("b").Heal()
	if x.kinds["log"] == 0 || x.kinds["event"] == 0 || x.kinds["error"] == 0 {
		t.Errorf("nothing was recorded: %v", x.kinds)
	}
	t.Logf("figure: %d runs of the recipes under faults", runs)
	x.search(t)
}

// An error about data that cannot be read, is too large, is refused or is in the wrong place
// shows the path, never the content.
func TestNoErrorQuotesAValue(t *testing.T) {
	coordtest.OnEach(t, func(w *coordtest.World) {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		var x told
		c := coordtest.Open(w.T, w.Link("a"), &coord.Options{Namespace: w.Path(""), Logger: x.logger(), Trace: x.trace})
		s := w.Session("x")
		put := func(path, data string) {
			w.T.Helper()
			w.Ensured(path)
			if _, err := s.Commit(ctx, backend.SetData(w.Path(path), []byte(data), backend.AnyVersion)); err != nil {
				w.T.Fatal(err)
			}
		}
		type small struct {
			N int8
			T time.Time
			A netip.Addr
			Q int8 `json:",string"`
		}
		fails := func(err error) {
			w.T.Helper()
			if err == nil {
				w.T.Error("no error")
			}
			x.fault(err)
		}
		for _, data := range []string{
			secretPayload, `"` + secretPayload + `"`, `{"N":"` + secretPayload + `"}`, `{"N":` + secretNumber + `}`, secretNumber,
			`{"N":[` + secretNumber + `]}`, `{"T":"` + secretPayload + `"}`, `{"A":"` + secretPayload + `"}`, `{"Q":"` + secretPayload + `"}`,
			`{"N":` + secretNumber + `.5e300}`, "[" + secretNumber,
		} {
			put("/v", data)
			v := coord.NewValue[small](c, "/v", nil)
			got, err := v.Get(ctx)
			fails(err)
			_, err = v.CompareAndSet(ctx, coord.Versioned[small]{}, small{N: 1})
			fails(err)
			x.add("conflict", fmt.Sprint(got.Err))
			if data != secretNumber {
				put("/n", data)
				_, err = coord.NewCounter(c, "/n").Add(ctx, 1)
				fails(err)
			}
			put("/s/limit", data)
			_, err = coord.NewSemaphore(c, "/s", 1, nil).TryAcquire(ctx, 1)
			fails(err)
			put("/tx/tx/t", data)
			_, err = coord.NewCoordinator[small](c, "/tx", nil).Status(ctx, "t")
			fails(err)

			raw := coord.NewQueue(c, "/q", &coord.QueueOptions[string]{Codec: coord.Text()})
			if _, err := raw.Put(ctx, data); err != nil {
				w.T.Fatal(err)
			}
			_, err = coord.NewQueue[small](c, "/q", nil).TryTake(ctx) // it goes to the dead letters, with a warning
			fails(err)
			m, err := coord.NewGroup(c, "/g", &coord.GroupOptions[string]{Codec: coord.Text()}).Join(ctx, "a", data)
			if err != nil {
				w.T.Fatal(err)
			}
			list, err := coord.NewGroup[small](c, "/g", nil).Members(ctx)
			if err != nil || len(list) != 1 {
				w.T.Fatal(list, err)
			}
			fails(list[0].Err)
			if err := m.Leave(); err != nil {
				w.T.Fatal(err)
			}
			_, err = coord.NewTxn(c).If(coord.IfVersion("/v", 77)).Set("/v", []byte(data)).Commit(ctx)
			fails(err)
			_, err = coord.NewTxn(c).Create("/v", []byte(data), backend.Persistent).Commit(ctx)
			fails(err)
		}
		for _, v := range []any{
			json.Number(secretPayload), refuses{}, speaks{}, map[string]any{"a": &refuses{}}, map[refuses]int{{}: 1}, math.NaN(), func() {},
		} {
			_, err := coord.NewValue[any](c, "/any", nil).Set(ctx, v)
			fails(err)
			_, err = coord.NewQueue[any](c, "/anyq", nil).Put(ctx, v)
			fails(err)
			_, err = coord.NewGroup[any](c, "/anyg", nil).Join(ctx, "a", v)
			fails(err)
		}
		huge := strings.Repeat(secretPayload, 50_000)
		_, err := coord.NewValue[string](c, "/v", nil).Set(ctx, huge)
		fails(err)
		_, err = coord.NewQueue[string](c, "/q", nil).Put(ctx, huge)
		fails(err)
		_, err = coord.NewMutex(c, "/l", &coord.MutexOptions{Data: []byte(huge)}).Lock(ctx)
		fails(err)
		_, err = coord.NewGroup[string](c, "/g", nil).Join(ctx, "b", huge)
		fails(err)
		x.search(w.T)
	})
}

// refuses is a value that cannot be encoded. The error shows its content.
type refuses struct{}

func (refuses) MarshalJSON() ([]byte, error) { return nil, errors.New("refused: " + secretPayload) }
func (refuses) MarshalText() ([]byte, error) { return nil, errors.New("refused: " + secretPayload) }

// speaks is a value whose encoding is no JSON.
type speaks struct{}

func (speaks) MarshalJSON() ([]byte, error) { return []byte(secretPayload), nil }

// Options, backends, clients and sessions show no password when they are printed.
func TestNothingPrintsThePassword(t *testing.T) {
	t.Parallel()
	w := coordtest.OnServer(t, zookeeper.Options{})
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var x told
	for _, digest := range []string{"user:" + secretPassword, ":" + secretPassword, secretPassword, "user:" + secretPassword + ":" + secretPassword} {
		o := zookeeper.Options{Digest: digest, Logger: x.logger(), ACL: []zookeeper.ACL{{Scheme: "world", ID: "anyone", Perms: zookeeper.PermAll}}}
		b := zookeeper.New(w.Addrs("a"), &o)
		things := []any{o, &o, b, []any{o}, map[string]any{"options": o}, struct{ O zookeeper.Options }{o}}
		s, err := b.Open(ctx)
		if err == nil {
			defer s.Close()
			things = append(things, s)
			c := coordtest.Open(t, b, &coord.Options{Logger: x.logger()})
			things = append(things, c, coord.NewMutex(c, w.Path("/l"), nil))
		} else {
			x.fault(err)
		}
		for _, thing := range things {
			x.add("print", fmt.Sprintf("%v %+v %#v %s", thing, thing, thing, thing))
			x.logger().Info("printed", "thing", thing)
			slog.New(slog.NewJSONHandler(&x, nil)).Info("printed", "thing", thing)
		}
	}
	x.search(t)
	x.mu.Lock() // the clients are still open, and log
	defer x.mu.Unlock()
	if !strings.Contains(x.text.String(), "user:…") {
		t.Error("the user's name is not shown either")
	}
}
