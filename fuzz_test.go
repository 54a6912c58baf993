package coord

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/layout"
)

const fuzzID = "01234567-89ab-8def-8123-456789abcdef"

// Whatever a node is called: what is taken for a node of a recipe can be spoken to, and
// its name says what was read out of it.
func FuzzNames(f *testing.F) {
	for _, name := range []string{
		"_c_" + fuzzID + "-lock-0000000001", "x__lock__2147483647", "_c_" + fuzzID + "-__READ__-000000001", "__WRIT__-2147483648",
		"_c_" + fuzzID + "-latch-0000000000", "_c_" + fuzzID + "-ready-0000000000", "_c_" + fuzzID + "-permit-2147483647-0000000000",
		"_c_" + fuzzID + "-member-a-0000000001", "_c_" + fuzzID + "-member--0000000001", "_c_" + fuzzID + "-guest-0000000001",
		"b-0-0", "b--9223372036854775808-9007199254740992", "i-" + fuzzID + "-0-0000000000", "m-" + fuzzID + "-" + fuzzID,
		"s-" + fuzzID, "d-" + fuzzID + "-9223372036854775807", "_c_" + fuzzID + "-take-0000000001", "tx~" + fuzzID, "live-" + fuzzID,
		"_c_01234567-89ab-8def-8\u202e-456789abcdef-lock-0000000000", "lock-\xff0000000000", "lock-000000000\x00", "..", "", "%s%d",
	} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if strings.Contains(name, "/") {
			return // no child is called so
		}
		addressable := backend.CheckPath("/"+name) == nil
		taken := func(what string, want string) {
			t.Helper()
			if !addressable {
				t.Errorf("%q is taken for %s, and cannot be addressed", name, what)
			}
			if !strings.HasSuffix(name, want) {
				t.Errorf("%q is taken for %s %q", name, what, want)
			}
		}
		for what, kinds := range map[string]layout.LineKinds{"a lock": layout.LockLine, "a reader or writer": layout.SharedLine, "a candidate": layout.LatchLine} {
			if q, ok := kinds.Parse(name); ok {
				taken(what, fmt.Sprintf("%010d", q.Seq))
				if q.Name != name || q.Shared && kinds != layout.SharedLine {
					t.Errorf("%q: %+v", name, q)
				}
			}
			l := &line{kinds: kinds}
			queue := l.kinds.Order([]string{name, name, "README"})
			for i := range queue {
				if j := layout.Blocker(queue, i); j >= i || j < -1 {
					t.Errorf("%q: %d waits for %d", name, i, j)
				}
			}
		}
		if q, ok := layout.ParsePermit(name); ok {
			taken("a permit", fmt.Sprintf("%s%d-%010d", layout.PermitInfix, q.Weight, q.Seq))
			if q.Weight < 1 {
				t.Errorf("%q weighs %d", name, q.Weight)
			}
		}
		if sum := layout.Weigh(layout.OrderPermits([]string{name, name, name})); sum < 0 {
			t.Errorf("%q: the sum of the weights is %d", name, sum)
		}
		if n, ok := layout.ParseMember(name); ok {
			taken("a member", fmt.Sprintf("%s%s-%010d", layout.MemberInfix, n.ID, n.Seq))
			if n.ID == "" || n.Seq < 0 || n.Seq >= layout.SeqHard {
				t.Errorf("%q: %+v", name, n)
			}
		}
		if n := len(layout.PresentMembers([]string{name, name})); n > 1 {
			t.Errorf("%q is %d members", name, n)
		}
		if id, mark, ok := layout.ParseBranch(name); ok {
			taken("a branch", id+"~"+mark)
			if name != id+"~"+mark || id == "" {
				t.Errorf("%q: id %q, mark %q", name, id, mark)
			}
		}
		if layout.IsLive(name) {
			taken("a live node", "")
		}
		for _, kind := range []string{layout.ItemPrefix, layout.MarkPrefix, layout.PutOffPrefix} {
			if id, rest, ok := layout.CutID(name, kind); ok {
				taken("a part of an item", kind+id+"-"+rest)
			}
		}
		if layout.IsState(name) {
			taken("a state", "")
		}
		r := layout.SortMembers([]string{name}, []string{name, "README"})
		if len(r.Living)+len(r.Waiting)+r.Extra > 1 || len(r.Waiting) > 0 {
			t.Errorf("%q: %+v", name, r)
		}
		for _, m := range r.Living {
			taken("one in a double barrier", "")
			layout.ByNumber(m, name)
		}
		if p := layout.ReadyPath("/e/" + name); p != "" && (!strings.HasPrefix(p, "/e/") || !strings.Contains(p, layout.ReadyInfix)) {
			t.Errorf("%q announces at %q", name, p)
		}
		_ = layout.IsOurs(name) // it must not panic
		if (checkMemberID(name) == nil) != (name != "" && len(name) <= layout.MaxMemberID && backend.CheckPath("/"+layout.MemberInfix+name+"-") == nil) {
			t.Errorf("%q as an id: %v", name, checkMemberID(name))
		}
		if checkID("ID", name) == nil && !addressable {
			t.Errorf("%q is an ID, and cannot be addressed", name)
		}
	})
}

// Whatever lies in a bucket: each item is there once, in order, and what goes with it
// is its own.
func FuzzBucket(f *testing.F) {
	other := "f" + fuzzID[1:]
	for _, list := range [][]string{
		{"i-" + fuzzID + "-0-0000000000", "s-" + fuzzID, "m-" + fuzzID + "-" + other, "d-" + fuzzID + "-12"},
		{"i-" + fuzzID + "-0-0000000001", "i-" + fuzzID + "-0-0000000000", "i-" + other + "-9223372036854775807--2147483648"},
		{"s-" + other, "d-" + other + "-5", "b-0-0", "b-0-1", "b-0-00", "b--1-0", "b-9-9007199254740993"},
		{"d-" + fuzzID + "-1", "d-" + fuzzID + "-2", "i-" + fuzzID + "--1-0000000000", "s-" + fuzzID + "x"},
	} {
		f.Add(strings.Join(list, "\n"))
	}
	f.Fuzz(func(t *testing.T, list string) {
		names := strings.Split(list, "\n")
		names = slices.DeleteFunc(names, func(name string) bool { return name == "" || strings.Contains(name, "/") })
		slices.Sort(names)
		names = slices.Compact(names) // no two children are called the same
		c := layout.ParseBucket("/q/items/b-0-0", names, 7)
		seen := make(map[string]bool)
		for i, e := range c.Items {
			if seen[e.ID] {
				t.Errorf("item %s twice", e.ID)
			}
			seen[e.ID] = true
			if i > 0 && cmp.Or(cmp.Compare(c.Items[i-1].Due, e.Due), cmp.Compare(c.Items[i-1].Seq, e.Seq)) > 0 {
				t.Errorf("out of order: %+v, %+v", c.Items[i-1], e)
			}
			for _, path := range []string{e.Path(), e.StateAt(), e.Bucket + "/" + e.PutOff} {
				if e.PutOff != "" && backend.CheckPath(path) != nil {
					t.Errorf("%q", path)
				}
			}
			if e.Name != fmt.Sprintf("%s%010d", layout.ItemStem(e.ID, e.Due), e.Seq) && !strings.Contains(e.Name, "+") && !strings.Contains(e.Name, "-0") {
				t.Errorf("%+v", e)
			}
			if e.State != slices.Contains(names, layout.StatePrefix+e.ID) {
				t.Errorf("%+v: state", e)
			}
			if e.PutOff != "" && !slices.Contains(names, e.PutOff) {
				t.Errorf("%+v: put off", e)
			}
		}
		for _, name := range c.Litter {
			if !slices.Contains(names, name) || seen[name[2:2+layout.GUIDLen]] {
				t.Errorf("%q is litter", name)
			}
		}
		v := sight{}
		v.add(c.Items, 3, 1_000)
		if len(v.found) > 3 {
			t.Errorf("%d found", len(v.found))
		}
		q := &queue{items: "/q/items"}
		all := layout.Buckets(q.items, names)
		for i, b := range all {
			if b.Path != layout.BucketPath(q.items, b.Key, b.N) || b.N < 0 || b.N > layout.MaxNumber || backend.CheckPath(b.Path) != nil {
				t.Errorf("%+v", b)
			}
			if i > 0 && all[i-1] == b {
				t.Errorf("%+v twice", b)
			}
		}
	})
}

// Whatever stands in a contender's node: it is read as a request only if it is one, and
// the contender's own data comes through the envelope as it was.
func FuzzEnvelopes(f *testing.F) {
	for _, data := range []string{
		"", "unlock", "__REVOKE__", `{"coord-revoke":null}`, `{"coord-revoke":{}}`, `{"coord-revoke":{"by":"x","at":9223372036854775807},"data":"AAE="}`,
		`{"coord-revoke":{"at":1e99}}`, `{"coord-revoke":[]}`, `{"coord-revoke":{"at":1},"data":"%"}`, `{"coord-candidate":{"id":"a","data":"AA=="}}`,
		`{"coord-candidate":null}`, `{"coord-candidate":{"id":{}}}`, "\xff\xfe", `{"coord-revoke":{"coord-revoke":{"coord-revoke":1}}}`,
	} {
		f.Add([]byte(data), "by", "id")
	}
	f.Fuzz(func(t *testing.T, data []byte, by, id string) {
		r, own := openEnvelope(data)
		if r == nil && !bytes.Equal(own, data) {
			t.Errorf("no request, and %q has become %q", data, own)
		}
		if (checkData(data) == nil) != (r == nil) {
			t.Error("checkData does not agree")
		}
		if r == nil && utf8.ValidString(by) {
			// As Revoke writes it.
			text, err := json.Marshal(envelope{Request: &requestJSON{By: by, At: 1}, Data: data})
			if err != nil {
				t.Fatal(err)
			}
			again, back := openEnvelope(text)
			if again == nil || again.By != by || !bytes.Equal(back, data) {
				t.Errorf("%q came back as %+v, %q", data, again, back)
			}
		}
		openCandidate(data)
		if !utf8.ValidString(id) {
			return // no ID
		}
		if text, err := encodeContender(id, data); err == nil {
			r, _ := openEnvelope(text)
			if got, own := openContender(text); r != nil || got != id || !bytes.Equal(own, data) {
				t.Errorf("the contender %q with %q came back as %q with %q, request %v", id, data, got, own, r)
			}
		} else if id != "" || checkData(data) == nil {
			t.Errorf("the contender %q with %q: %v", id, data, err)
		}
		j := candidateJSON{ID: id, Data: data}
		text, err := j.encode()
		if err != nil {
			t.Fatal(err)
		}
		if r, _ := openEnvelope(text); r != nil {
			t.Errorf("the candidate %q reads as a request", id)
		}
		x := newCandidate("/e/x-latch-0000000000", text, backend.Stat{})
		if x.ID != id || !bytes.Equal(x.Data, data) {
			t.Errorf("%q, %q came back as %q, %q", id, data, x.ID, x.Data)
		}
		if s := (Leader{Candidate: x}).String(); !utf8.ValidString(s) || strings.ContainsAny(s, "\n\x00\x1b") {
			t.Errorf("String is no text for a log: %q", s)
		}
	})
}

// Whatever stands in a record, a decision or a branch: it is refused, or all that it
// names can be addressed.
func FuzzRecords(f *testing.F) {
	for _, data := range []string{
		"", "{", "null", "[]", `{"mark":"` + fuzzID + `","sites":["a","b"],"deadline":1,"payload":"AA=="}`, `{"mark":"../..","sites":["/"]}`,
		`{"mark":"` + fuzzID + `","sites":["..",""],"deadline":9223372036854775807}`, `{"commit":true,"by":"x"}`, `{"commit":1}`, "yes", "no\nbecause",
		`{"mark":"` + fuzzID + `","sites":["a\u202e"]}`, `{"mark":"` + fuzzID + `","sites":null,"deadline":-9223372036854775808}`,
	} {
		f.Add([]byte(data))
	}
	x := &txSpace{path: recipePath{full: "/tx", given: "/tx"}}
	f.Fuzz(func(t *testing.T, data []byte) {
		st := memory.New(nil)
		b, err := st.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		for _, path := range []string{"/tx", "/tx/tx"} {
			if _, err := b.Commit(t.Context(), backend.Create(path, nil, backend.Persistent)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := b.Commit(t.Context(), backend.Create("/tx/tx/t", data, backend.Persistent)); err != nil {
			return // too large
		}
		s := &session{b: b}
		d, err := x.load(t.Context(), s, "t", nil)
		if err != nil {
			if !errors.Is(err, ErrDecode) {
				t.Errorf("load: %v", err)
			}
			return
		}
		for _, site := range d.rec.Sites {
			for _, path := range []string{d.vote(site), x.branch(d, site), x.inbox(site), x.serving(site)} {
				if err := backend.CheckPath(path); err != nil {
					t.Errorf("%v", err)
				}
			}
		}
		for _, path := range []string{d.open(), d.decision()} {
			if err := backend.CheckPath(path); err != nil {
				t.Errorf("%v", err)
			}
		}
		if (len(d.missing(nil)) == 0) && len(d.rec.Sites) > 0 {
			t.Error("all have voted, without a vote")
		}
		d.deadline()
		// The same as a decision.
		if _, err := b.Commit(t.Context(), backend.Create(d.decision(), data, backend.Persistent)); err != nil {
			t.Fatal(err)
		}
		if o, err := d.outcome(t.Context(), s, nil); err == nil {
			again := new(outcome)
			if err := json.Unmarshal(o.encode(), again); err != nil || *again != *o {
				t.Errorf("%+v came back as %+v, %v", o, again, err)
			}
		} else if !errors.Is(err, ErrDecode) {
			t.Errorf("outcome: %v", err)
		}
		if s := layout.Clip(string(data)); len(s) > 1000 || !utf8.ValidString(s) {
			t.Errorf("clipped to %d bytes", len(s))
		}
	})
}

// Whatever stands in the node of a setting, a counter, a value or a member: it is read,
// or refused with the error of the manual, and nothing is granted by it.
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
		s, err := c.session(ctx)
		if err != nil {
			t.Fatal(err)
		}
		commit := func(op backend.Op) {
			t.Helper()
			if _, err := s.b.Commit(ctx, op); err != nil {
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
		case limit < 1 || limit > maxPermits || got != nil:
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
		if _, err := v.Get(ctx); err != nil && !errors.Is(err, ErrDecode) {
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
		if names, opened, err := (&DoubleBarrier{ready: "/s/limit"}).readReady(ctx, s); err != nil || opened == 0 {
			t.Errorf("ready: %v, %v, %v", names, opened, err)
		}
	})
}

// What a codec writes it reads again, and half a codec does neither.
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
		// Whatever the default codec refuses is said so.
		if _, err := k.decode(data); err != nil && !errors.Is(err, ErrDecode) {
			t.Error(err)
		}
	})
}

func TestParseSeqReadsWhatTheServiceWrites(t *testing.T) {
	for _, n := range []int32{0, 1, 7, 1234567890, math.MaxInt32, -1, -5, -1234567890, math.MinInt32} {
		// Java's %010d.
		name := fmt.Sprintf("_c_x-lock-%010d", n)
		if got, ok := layout.ParseSeq(name, layout.LockInfix); !ok || got != n {
			t.Errorf("%s: %d, %v", name, got, ok)
		}
	}
	for _, name := range []string{
		"", "lock-", "lock-1", "lock-000000000", "lock-00000000000", "lock-99999999999", "lock-9999999999", "lock-+000000001",
		"lock- 000000001", "lock-000000000x", "lock--0000000001", "lock--000000000", "x-0000000001", "README", "_c_s1", "-1",
	} {
		if got, ok := layout.ParseSeq(name, layout.LockInfix); ok {
			t.Errorf("%q is taken for number %d", name, got)
		}
	}
}

func FuzzParseSeq(f *testing.F) {
	for _, s := range []string{"_c_x-lock-0000000001", "lock--2147483648", "lock-2147483648", "lock-", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		n, ok := layout.ParseSeq(name, layout.LockInfix)
		if ok && !strings.HasSuffix(name, fmt.Sprintf("lock-%010d", n)) {
			t.Errorf("%q is taken for %d", name, n)
		}
	})
}

func TestOrderIsAwareOfTheWrap(t *testing.T) {
	l := &line{kinds: layout.LockLine}
	queue := l.kinds.Order([]string{
		"b-lock--2147483648", "z-lock-2147483646", "README", "a-lock-2147483647", "c-lock--2147483647",
	})
	var got []int32
	for _, q := range queue {
		got = append(got, q.Seq)
	}
	want := []int32{math.MaxInt32 - 1, math.MaxInt32, math.MinInt32, math.MinInt32 + 1}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("order %v, want %v", got, want)
	}
	if !layout.Before(1, 2) || layout.Before(2, 1) || layout.Before(1, 1) || !layout.Before(math.MaxInt32, math.MinInt32) {
		t.Error("before is wrong")
	}
}

func TestGUIDsAreUniqueAndWellFormed(t *testing.T) {
	seen := make(map[string]bool)
	for range 1000 {
		g := new(Client).newGUID("")
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
