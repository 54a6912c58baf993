package recipetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
)

// A Watch that decodes an older node while another Watch has seen the deletion.
func TestValue_LateDecodeDoesNotUndoADeletion(t *testing.T) {
	for _, partition := range []bool{false, true} {
		onMemory(t, func(w *world) {
			var ones atomic.Int64
			gate := make(chan struct{})
			o := &coord.ValueOptions[int]{Codec: coord.Codec[int]{
				Encode: func(n int) ([]byte, error) { return []byte(strconv.Itoa(n)), nil },
				Decode: func(b []byte) (int, error) {
					if string(b) == "1" && ones.Add(1) == 2 {
						<-gate
					}
					return strconv.Atoi(string(b))
				},
			}}
			v := coord.NewValue(w.Open("a", nil), "/v", o)
			other := coord.NewValue(w.Open("b", nil), "/v", &coord.ValueOptions[int]{Codec: coord.Codec[int]{
				Encode: o.Codec.Encode, Decode: func(b []byte) (int, error) { return strconv.Atoi(string(b)) },
			}})
			setValue(w.T, other, 1)
			v.Watch(w.T.Context())
			w.Settle()
			v.Watch(w.T.Context())
			w.Settle()
			last := setValue(w.T, other, 2)
			w.Settle()
			if err := other.Delete(w.T.Context(), last); err != nil {
				w.T.Fatal(err)
			}
			w.Settle()
			got, _ := v.Load()
			sameLoad(w, got, last, coord.ErrNotFound)
			if partition {
				w.Link("a").Partition()
				w.Settle()
			}
			close(gate)
			w.Settle()
			got, _ = v.Load()
			sameLoad(w, got, last, coord.ErrNotFound)
			w.Link("a").Heal()
			time.Sleep(time.Minute)
			wantLoad(w, v, last, coord.ErrNotFound)
		})
	}
}

// loadHistory is the order of the states of a value, as the service has had them.
type loadHistory struct {
	changed []int64 // the Mzxid of each state; 0: no node
	at      int     // the state that Load has reached
	good    int64
}

// saw notes what Load has returned. It returns an error if Load went back.
func (h *loadHistory) saw(now coord.Versioned[int]) error {
	if now.Mzxid < h.good {
		return fmt.Errorf("the value of %d after that of %d", now.Mzxid, h.good)
	}
	h.good = now.Mzxid
	changed := now.Mzxid
	if errors.Is(now.Err, coord.ErrNotFound) {
		changed = 0
	}
	for i := h.at; i < len(h.changed); i++ {
		if h.changed[i] == changed {
			h.at = i
			return nil
		}
	}
	return fmt.Errorf("state %d (no node: 0) is older than state %d of %v", changed, h.at, h.changed)
}

// Random schedules of writes, deletions, slow reads, slow goroutines, breaks of contact, and
// Watches that begin and end.
func TestValue_LoadNeverGoesBackOverDeletions(t *testing.T) {
	for seed := range uint64(150) {
		synctest.Test(t, func(t *testing.T) {
			loadSchedule(t, seed)
			if t.Failed() {
				t.Logf("seed %d", seed)
			}
		})
		if t.Failed() {
			return
		}
	}
}

func loadSchedule(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 22))
	st := memory.New(nil)
	truth, err := st.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer truth.Close()
	var stalls atomic.Uint64 // of the goroutines of the client
	stalls.Store(seed)
	stall := func() {
		time.Sleep(time.Duration(rand.New(rand.NewPCG(seed, stalls.Add(1))).IntN(5)) * time.Millisecond)
	}
	link := st.Link("a")
	c, err := coord.Open(t.Context(), backendtest.Intercept(link, backendtest.Hooks{
		Before: func(context.Context, backendtest.Call) error { stall(); return nil },
		After:  func(_ context.Context, _ backendtest.Call, err error) error { stall(); return err },
	}), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	v := coord.NewValue(c, "/v", &coord.ValueOptions[int]{Codec: coord.Codec[int]{
		Encode: func(n int) ([]byte, error) { return []byte(strconv.Itoa(n)), nil },
		Decode: func(b []byte) (int, error) { stall(); return strconv.Atoi(string(b)) },
	}})
	history := loadHistory{changed: []int64{0}}
	exists := false
	look := func() {
		now, _ := v.Load()
		if err := history.saw(now); err != nil {
			t.Error(err)
		}
	}
	var ends []context.CancelFunc
	begin := func() {
		ctx, end := context.WithCancel(t.Context())
		ends = append(ends, end)
		v.Watch(ctx)
	}
	begin()
	begin()
	for n := 0; n < 60 && !t.Failed(); n++ {
		op := backend.Create("/v", []byte(strconv.Itoa(n)), backend.Persistent)
		switch k := random.IntN(12); {
		case k < 3 && exists:
			op = backend.Delete("/v", backend.AnyVersion)
			exists = false
		case k < 6 && exists:
			op = backend.SetData("/v", []byte(strconv.Itoa(n)), backend.AnyVersion)
		case k < 6:
			exists = true
		case k == 6:
			begin()
			op = backend.Op{}
		case k == 7 && len(ends) > 1:
			i := random.IntN(len(ends))
			ends[i]()
			ends = append(ends[:i], ends[i+1:]...)
			op = backend.Op{}
		case k == 8:
			link.Partition()
			time.Sleep(time.Duration(random.IntN(3)) * time.Millisecond)
			link.Heal()
			op = backend.Op{}
		case k == 9:
			link.SetLatency(time.Duration(random.IntN(4)) * time.Millisecond)
			op = backend.Op{}
		default:
			op = backend.Op{}
		}
		if op.Kind != 0 {
			if _, err := truth.Commit(t.Context(), op); err != nil {
				t.Fatal(err)
			}
			stat, err := truth.Exists(t.Context(), "/v", nil) // without a node zero
			if err != nil && !errors.Is(err, backend.ErrNotFound) {
				t.Fatal(err)
			}
			history.changed = append(history.changed, stat.Mzxid)
		}
		for range random.IntN(4) {
			look()
			time.Sleep(time.Millisecond)
			look()
		}
	}
	time.Sleep(time.Minute)
	look()
	if now, age := v.Load(); age != 0 || errors.Is(now.Err, coord.ErrNotFound) == exists ||
		exists && now.Mzxid != history.changed[len(history.changed)-1] {
		t.Errorf("after all: %+v, age %v, exists %v, %v", now, age, exists, history.changed)
	}
	for _, end := range ends {
		end()
	}
}
