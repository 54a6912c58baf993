package coord

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-coord/coord/internal/contender"

	"github.com/go-coord/coord/internal/core"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/layout"
)

const fuzzID = "01234567-89ab-8def-8123-456789abcdef"

// Whatever the data of a contender's node, and whatever a caller wants to store there.
func FuzzContenders(f *testing.F) {
	for _, data := range []string{
		"", "unlock", "__REVOKE__", `{"coord-revoke":null}`, `{"coord-revoke":{}}`, `{"coord-revoke":{"by":"x","at":9223372036854775807},"data":"AAE="}`,
		`{"coord-revoke":{"at":1e99}}`, `{"coord-revoke":[]}`, `{"coord-revoke":{"at":1},"data":"%"}`, `{"coord-candidate":{"id":"a","data":"AA=="}}`,
		`{"coord-candidate":null}`, `{"coord-candidate":{"id":{}}}`, "\xff\xfe", `{"coord-revoke":{"coord-revoke":{"coord-revoke":1}}}`,
	} {
		f.Add([]byte(data), "id")
	}
	f.Fuzz(func(t *testing.T, data []byte, id string) {
		text, err := contender.Encode(id, 0, data)
		if bad := !utf8.ValidString(id) || id == "" && layout.IsRequest(data); bad != (err != nil) || bad && !errors.Is(err, ErrInvalid) {
			t.Errorf("the contender %q with %q: %v", id, data, err)
		} else if err == nil && layout.IsRequest(text) {
			t.Errorf("the contender %q with %q reads as a request", id, data)
		}
		for _, id := range []string{id, string(data)} {
			if s := (Leader{Candidate: Candidate{ID: id, Token: 1}}).String(); !utf8.ValidString(s) || strings.ContainsAny(s, "\n\x00\x1b") {
				t.Errorf("String is no text for a log: %q", s)
			}
		}
	})
}

// Whatever the data of a setting, a counter, a value or a member: it is read, or refused with
// the error of the manual, and grants nothing.
func FuzzSettings(f *testing.F) {
	for _, data := range []string{"", "0", "2", " 7\n", "-1", "+3", "2147483647", "2147483648", "9223372036854775808", "1e3", "0x10", "٣", "null", `{"N":1}`, `"x"`, "\xff"} {
		f.Add([]byte(data))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		ctx := context.Background()
		c, err := Open(ctx, memory.New(nil), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		s, err := c.core().Live(ctx)
		if err != nil {
			t.Fatal(err)
		}
		commit := func(op backend.Op) {
			t.Helper()
			if _, err := s.Backend().Commit(ctx, op); err != nil {
				t.Fatal(err)
			}
		}
		if len(data) > 100_000 {
			return
		}
		commit(backend.Create("/s", data, backend.Persistent))
		commit(backend.Create("/s/limit", data, backend.Persistent))
		commit(backend.Create("/v", data, backend.Persistent)) // a path for one kind of recipe
		sem := NewSemaphore(c, "/s", 1, &SemaphoreOptions{AdoptLimit: true})
		limit, err := sem.Limit(ctx)
		switch h, got := sem.TryAcquire(ctx, 1); {
		case err != nil:
			if !errors.Is(err, ErrInvalid) || !errors.Is(got, ErrInvalid) || h != nil {
				t.Errorf("limit %v, acquire %v", err, got)
			}
		case limit < 1 || limit > layout.MaxPermits || got != nil:
			t.Errorf("limit %d, acquire %v", limit, got)
		default:
			if h, err := sem.TryAcquire(ctx, limit); err == nil {
				t.Errorf("%d and one more of %d permits", limit, limit)
				h.Release()
			}
			h.Release()
		}
		n := NewCounter(c, "/v")
		before, err := n.Get(ctx)
		if err != nil && !errors.Is(err, ErrDecode) {
			t.Errorf("counter: %v", err)
		}
		v := NewValue[struct{ N int }](c, "/v", nil)
		if _, err := v.Get(ctx); err != nil && !errors.Is(err, ErrDecode) && (len(data) > 0 || !errors.Is(err, ErrNotFound)) {
			t.Errorf("value: %v", err)
		}
		after, addErr := n.Add(ctx, 1)
		if (addErr == nil) != (err == nil) && !errors.Is(addErr, ErrLimit) || addErr == nil && after != before+1 {
			t.Errorf("counter: %d, %v; then %d, %v", before, err, after, addErr)
		}
		commit(backend.Create("/g", nil, backend.Persistent))
		commit(backend.Create("/g/_c_"+fuzzID+"-member-a-0000000000", data, backend.Persistent))
		list, err := NewGroup[struct{ N int }](c, "/g", nil).Members(ctx)
		if err != nil || len(list) != 1 || list[0].Err != nil && !errors.Is(list[0].Err, ErrDecode) {
			t.Errorf("members: %+v, %v", list, err)
		}
		const member = "_c_" + fuzzID + "-member-0000000000"
		commit(backend.Create("/d", nil, backend.Persistent))
		commit(backend.Create("/d/members", nil, backend.Persistent))
		commit(backend.Create("/d/members/"+member, nil, backend.Persistent))
		commit(backend.Create("/d/ready", slices.Concat(data, []byte("\n"+member)), backend.Persistent))
		if st, err := NewDoubleBarrier(c, "/d", 1, nil).State(ctx); err != nil || st != (DoubleBarrierState{Inside: 1}) {
			t.Errorf("double barrier: %+v, %v", st, err)
		}
	})
}

// A codec can decode what it encodes, and half a codec does neither.
func FuzzCodecs(f *testing.F) {
	f.Add("", []byte(nil), int64(0))
	f.Add("text", []byte("\xff\x00"), int64(-1))
	f.Add("\xff", []byte("{}"), int64(1<<62))
	f.Fuzz(func(t *testing.T, text string, data []byte, n int64) {
		type all struct {
			Text string
			Data []byte
			N    int64
		}
		in := all{text, data, n}
		k := Codec[all]{}.orJSON()
		if enc, err := k.encode(in); err != nil {
			t.Error(err)
		} else if out, err := k.decode(enc); err != nil || out.N != n || !bytes.Equal(out.Data, data) || utf8.ValidString(text) && out.Text != text {
			t.Errorf("%+v came back as %+v, %v", in, out, err)
		}
		if enc, err := Text().encode(text); err != nil || string(enc) != text {
			t.Errorf("%q, %v", enc, err)
		}
		if out, err := Text().decode(data); err != nil || out != string(data) {
			t.Errorf("%q, %v", out, err)
		}
		enc, err := Bytes().encode(data)
		if err != nil || !bytes.Equal(enc, data) {
			t.Errorf("%q, %v", enc, err)
		}
		if len(enc) > 0 {
			enc[0]++ // a copy
			if out, err := Bytes().decode(data); err != nil || !bytes.Equal(out, data) {
				t.Errorf("%q, %v", out, err)
			}
		}
		for _, half := range []Codec[string]{{Encode: Text().Encode}, {Decode: Text().Decode}} {
			if _, err := half.orJSON().encode(text); !errors.Is(err, ErrInvalid) {
				t.Errorf("half a codec encodes: %v", err)
			}
			if _, err := half.orJSON().decode(data); !errors.Is(err, ErrInvalid) {
				t.Errorf("half a codec decodes: %v", err)
			}
		}
		// What the default codec refuses is ErrDecode.
		if _, err := k.decode(data); err != nil && !errors.Is(err, ErrDecode) {
			t.Error(err)
		}
	})
}

func TestGUIDsAreUniqueAndWellFormed(t *testing.T) {
	seen := make(map[string]bool)
	for range 1000 {
		g := new(core.Client).NewGUID("")
		if len(g) != layout.GUIDLen || seen[g] {
			t.Fatalf("%q", g)
		}
		for i, r := range g {
			dash := i == 8 || i == 13 || i == 18 || i == 23
			if dash != (r == '-') || !dash && !strings.ContainsRune("0123456789abcdef", r) {
				t.Fatalf("%q", g)
			}
		}
		seen[g] = true
	}
}
