package layout_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

const fuzzID = "01234567-89ab-8def-8123-456789abcdef"

// Whatever the name of a node: a name that is parsed as one of a recipe can be addressed, and
// ends with the parts that were read from it.
func FuzzNames(f *testing.F) {
	for _, name := range []string{
		"_c_" + fuzzID + "-lock-0000000001", "x__lock__2147483647", "_c_" + fuzzID + "-__READ__-000000001", "__WRIT__-2147483648",
		"_c_" + fuzzID + "-latch-0000000000", "_c_" + fuzzID + "-ready-0000000000", "_c_" + fuzzID + "-permit-2147483647-0000000000",
		"_c_" + fuzzID + "-member-a-0000000001", "_c_" + fuzzID + "-member--0000000001", "_c_" + fuzzID + "-guest-0000000001",
		"b-0-0", "b--9223372036854775808-9007199254740992", "i-" + fuzzID + "-0-0000000000", "m-" + fuzzID + "-" + fuzzID,
		"s-" + fuzzID, "d-" + fuzzID + "-9223372036854775807", "r-" + fuzzID, "_c_" + fuzzID + "-take-0000000001", "tx~" + fuzzID, "live-" + fuzzID,
		fuzzTag(fuzzID, 5), fuzzTag(fuzzID, 0) + "0", layout.ItemKey{Hash: layout.HashKey(""), Until: 1}.UntilName(fuzzID), "u-x-1-" + fuzzID, "t-" + fuzzID + "-" + fuzzTrace, "t-" + fuzzID + "-00-" + strings.Repeat("0", 32) + "-b7ad6b7169203331-01",
		"_c_01234567-89ab-8def-8\u202e-456789abcdef-lock-0000000000", "lock-\xff0000000000", "lock-000000000\x00", "..", "", "%s%d",
	} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if strings.Contains(name, "/") {
			return // no child has such a name
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
				taken(what, digits(name, q.Seq))
				if q.Name != name || q.Shared && kinds != layout.SharedLine {
					t.Errorf("%q: %+v", name, q)
				}
			}
			queue := kinds.Order([]string{name, name, "README"})
			for i := range queue {
				if j := layout.Blocker(queue, i); j >= i || j < -1 {
					t.Errorf("%q: %d waits for %d", name, i, j)
				}
			}
		}
		if q, ok := layout.ParsePermit(name); ok {
			taken("a permit", fmt.Sprintf("%s%d-%s", layout.PermitInfix, q.Weight, digits(name, q.Seq)))
			if q.Weight < 1 {
				t.Errorf("%q weighs %d", name, q.Weight)
			}
		}
		if sum := layout.Weigh(layout.OrderPermits([]string{name, name, name})); sum < 0 {
			t.Errorf("%q: the sum of the weights is %d", name, sum)
		}
		if n, ok := layout.ParseMember(name); ok {
			taken("a member", fmt.Sprintf("%s%s-%010d", layout.MemberInfix, n.ID, n.Seq))
			if n.ID == "" || n.Seq < 0 {
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
		if kind, _ := layout.Parse(name); kind != "" && kind != layout.KindRecord {
			taken(string(kind), "")
		}
		if layout.IsID(name) {
			taken("an ID", "")
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
		if id, k, ok := layout.ParseTag(name); ok && layout.TagName(id, k) != name {
			t.Errorf("%q is the tag of %q and %+v", name, id, k)
		}
		if id, k, ok := layout.ParseUntil(name); ok {
			if taken("the time of a key", ""); k.UntilName(id) != name {
				t.Errorf("%q is the time of %q and %+v", name, id, k)
			}
		}
		r := layout.SortMembers([]string{name}, []string{name, "README"})
		if len(r.Inside)+len(r.Waiting)+r.Extra > 1 || len(r.Waiting) > 0 {
			t.Errorf("%q: %+v", name, r)
		}
		for _, m := range r.Inside {
			taken("one in a double barrier", "")
			layout.ByNumber(m, name)
		}
		if p := layout.ReadyPath("/e/" + name); p != "" && (!strings.HasPrefix(p, "/e/") || !strings.Contains(p, layout.ReadyInfix)) {
			t.Errorf("%q announces at %q", name, p)
		}
		_ = layout.IsOurs(name) // it must not panic
	})
}

const fuzzTrace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func fuzzTag(id string, until int64) string {
	return layout.TagName(id, layout.ItemKey{Hash: layout.HashKey("x"), Until: until})
}

// Whatever the names in a bucket: each item is parsed once, in order, with the nodes that
// belong to it.
func FuzzBucket(f *testing.F) {
	other := "f" + fuzzID[1:]
	for _, list := range [][]string{
		{"i-" + fuzzID + "-0-0000000000", "s-" + fuzzID, "m-" + fuzzID + "-" + other, "d-" + fuzzID + "-12"},
		{"i-" + fuzzID + "-0-0000000001", "i-" + fuzzID + "-0-0000000000", "i-" + other + "-9223372036854775807--2147483648"},
		{"s-" + other, "d-" + other + "-5", "b-0-0", "b-0-1", "b-0-00", "b--1-0", "b-9-9007199254740993"},
		{"i-" + fuzzID + "-0-0000000000", "r-" + fuzzID, "r-" + other, "r-" + fuzzID + "-1"},
		{"i-" + fuzzID + "-0-0000000000", "o-" + fuzzID, "o-" + other, "o-" + fuzzID + "-1", "o-" + fuzzID + "x"},
		{"i-" + fuzzID + "-0-0000000000", fuzzTag(fuzzID, 0), fuzzTag(other, 5), fuzzTag(fuzzID, 7) + "x", "k-" + fuzzID},
		{"i-" + fuzzID + "-0-0000000000", fuzzTag(fuzzID, 1700000000000)},
		{"i-" + fuzzID + "-0-0000000000", "t-" + fuzzID + "-" + fuzzTrace, "t-" + other + "-" + fuzzTrace, "t-" + fuzzID + "-" + fuzzTrace[1:]},
		{"d-" + fuzzID + "-1", "d-" + fuzzID + "-2", "i-" + fuzzID + "--1-0000000000", "s-" + fuzzID + "x"},
	} {
		f.Add(strings.Join(list, "\n"))
	}
	f.Fuzz(func(t *testing.T, list string) {
		names := strings.Split(list, "\n")
		names = slices.DeleteFunc(names, func(name string) bool { return name == "" || strings.Contains(name, "/") })
		slices.Sort(names)
		names = slices.Compact(names) // no two children have the same name
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
			for _, path := range []string{e.Path(), e.StateAt(), e.PutOffAt()} {
				if e.PutOff != "" && backend.CheckPath(path) != nil {
					t.Errorf("%q", path)
				}
			}
			if e.Name != layout.ItemStem(e.ID, e.Due)+digits(e.Name, e.Seq) && !strings.Contains(e.Name, "+") && !strings.Contains(e.Name, "-0") {
				t.Errorf("%+v", e)
			}
			if e.State != slices.Contains(names, layout.StatePrefix+e.ID) {
				t.Errorf("%+v: state", e)
			}
			if e.Reason != slices.Contains(names, layout.ReasonPrefix+e.ID) {
				t.Errorf("%+v: reason", e)
			}
			if e.Options != slices.Contains(names, layout.OptionsPrefix+e.ID) {
				t.Errorf("%+v: options", e)
			}
			for _, path := range e.Notes(true) {
				if !layout.IsNote(path) || !strings.HasPrefix(path, "/q/keys/") && !slices.Contains(names, strings.TrimPrefix(path, e.Bucket+"/")) {
					t.Errorf("%+v: note %q", e, path)
				}
			}
			tagged := slices.ContainsFunc(names, func(name string) bool {
				id, _, ok := layout.ParseTag(name)
				return ok && id == e.ID
			})
			if (e.Tag != layout.ItemKey{}) != tagged {
				t.Errorf("%+v: tag", e)
			}
			if traced := slices.ContainsFunc(names, func(name string) bool {
				id, _, ok := layout.ParseTrace(name)
				return ok && id == e.ID
			}); traced != (e.Trace != "") || traced && !slices.Contains(names, layout.TraceName(e.ID, e.Trace)) {
				t.Errorf("%+v: trace", e)
			}
			if e.Key() != 0 {
				t.Errorf("%+v: key %d", e, e.Key())
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
		const items = "/q/items"
		all := layout.Buckets(items, names)
		for i, b := range all {
			if b.Path != layout.BucketPath(items, b.Key, b.N) || b.N < 0 || b.N > layout.MaxNumber || backend.CheckPath(b.Path) != nil {
				t.Errorf("%+v", b)
			}
			if i > 0 && all[i-1] == b {
				t.Errorf("%+v twice", b)
			}
		}
	})
}

// Whatever the data of a contender's node: it is read as a request only if it is one, and the
// contender's own data passes through the envelope unchanged.
func FuzzEnvelopes(f *testing.F) {
	for _, data := range []string{
		"", "unlock", "__REVOKE__", `{"coord-revoke":null}`, `{"coord-revoke":{}}`, `{"coord-revoke":{"by":"x","at":9223372036854775807},"data":"AAE="}`,
		`{"coord-revoke":{"at":1e99}}`, `{"coord-revoke":[]}`, `{"coord-revoke":{"at":1},"data":"%"}`, `{"coord-candidate":{"id":"a","data":"AA=="}}`,
		`{"coord-candidate":null}`, `{"coord-candidate":{"id":{}}}`, "\xff\xfe", `{"coord-revoke":{"coord-revoke":{"coord-revoke":1}}}`,
	} {
		f.Add([]byte(data), "by", "id")
	}
	f.Fuzz(func(t *testing.T, data []byte, by, id string) {
		r, own := layout.OpenEnvelope(data)
		if r == nil && !bytes.Equal(own, data) {
			t.Errorf("no request, and %q has become %q", data, own)
		}
		if layout.IsRequest(data) != (r != nil) {
			t.Error("IsRequest does not agree")
		}
		if r == nil && utf8.ValidString(by) {
			text, err := (&layout.Revocation{By: by, At: time.UnixMilli(1)}).Encode(data)
			if err != nil {
				t.Fatal(err)
			}
			again, back := layout.OpenEnvelope(text)
			if again == nil || again.By != by || again.At.UnixMilli() != 1 || !bytes.Equal(back, data) {
				t.Errorf("%q came back as %+v, %q", data, again, back)
			}
		}
		layout.OpenCandidate(data)
		if !utf8.ValidString(id) {
			return // no ID
		}
		text, err := layout.EncodeContender(id, 0, data)
		if err != nil {
			t.Fatal(err)
		}
		if layout.IsRequest(text) != (id == "" && r != nil) {
			t.Errorf("the contender %q with %q reads as a request: %v", id, data, layout.IsRequest(text))
		}
		if got, own := layout.OpenContender(text); got != id || !bytes.Equal(own, data) {
			t.Errorf("the contender %q with %q came back as %q with %q", id, data, got, own)
		}
		j := layout.Candidate{ID: id, Data: data}
		if text, err = j.Encode(); err != nil {
			t.Fatal(err)
		}
		if layout.IsRequest(text) {
			t.Errorf("the candidate %q reads as a request", id)
		}
		if back := layout.OpenCandidate(text); back.ID != id || !bytes.Equal(back.Data, data) {
			t.Errorf("%q, %q came back as %q, %q", id, data, back.ID, back.Data)
		}
	})
}

// Whatever the data of a record, a decision or a branch: it is refused, or all that it names
// can be addressed.
func FuzzRecords(f *testing.F) {
	for _, data := range []string{
		"", "{", "null", "[]", `{"mark":"` + fuzzID + `","sites":["a","b"],"deadline":1,"payload":"AA=="}`, `{"mark":"../..","sites":["/"]}`,
		`{"mark":"` + fuzzID + `","sites":["..",""],"deadline":9223372036854775807}`, `{"commit":true,"by":"x"}`, `{"commit":1}`, "yes", "no\nbecause",
		`{"mark":"` + fuzzID + `","sites":["a\u202e"]}`, `{"mark":"` + fuzzID + `","sites":null,"deadline":-9223372036854775808}`,
	} {
		f.Add([]byte(data))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		switch r, err := layout.ParseRecord(data); {
		case err == nil:
			const czxid = math.MaxInt64
			names := []string{layout.OpenName(r.Mark), layout.DecisionName(czxid), layout.BranchName("t", r.Mark)}
			for _, site := range r.Sites {
				names = append(names, site, layout.VoteName(czxid, site))
			}
			for _, name := range names {
				if err := backend.CheckPath("/" + name); err != nil || strings.Contains(name, "/") {
					t.Errorf("%q: %v", name, err)
				}
			}
			if id, mark, ok := layout.ParseBranch(layout.BranchName("t", r.Mark)); !ok || id != "t" || mark != r.Mark {
				t.Errorf("a branch of the mark %q: %q, %q, %v", r.Mark, id, mark, ok)
			}
			if len(r.Missing(czxid, nil)) != len(r.Sites) || len(r.Missing(czxid, names)) != 0 {
				t.Error("a site has voted without a vote, or has not with one")
			}
			r.Due()
		case !errors.Is(err, layout.ErrDecode) || r.Mark != "" || r.Sites != nil || r.Payload != nil:
			t.Errorf("%+v, %v", r, err)
		}
		if o, ok := layout.ParseOutcome(data); ok {
			if again, ok := layout.ParseOutcome(o.Encode()); !ok || *again != *o {
				t.Errorf("%+v came back as %+v, %v", o, again, ok)
			}
		}
		if s := layout.Clip(string(data)); len(s) > 1000 || !utf8.ValidString(s) {
			t.Errorf("clipped to %d bytes", len(s))
		}
		if got := layout.BranchVote(layout.EncodeNo(string(data))); got != layout.BranchNo {
			t.Errorf("a no with the reason %q reads as %q", data, got)
		}
		layout.ParseLimit(data)
	})
}

func FuzzParseSeq(f *testing.F) {
	for _, s := range []string{"_c_x-lock-0000000001", "lock--2147483648", "lock-2147483648", "lock-", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		n, ok := layout.ParseSeq(name, layout.LockInfix)
		if ok && !strings.HasSuffix(name, "lock-"+digits(name, n)) {
			t.Errorf("%q is taken for %d", name, n)
		}
	})
}

// digits returns a number as it stands at the end of the name.
func digits(name string, n int64) string {
	plain, w := fmt.Sprintf("%010d", n), written(n)
	if strings.HasSuffix(name, "-"+w) || !strings.HasSuffix(name, plain) {
		return w
	}
	return plain
}

// written returns a number as ZooKeeper writes it.
func written(n int64) string {
	if n > math.MaxInt32 && n <= math.MaxUint32 {
		return fmt.Sprintf("%010d", int32(uint32(n)))
	}
	return fmt.Sprintf("%010d", n)
}

// Whatever an error says, and whatever an outsider writes: a reason is of bounded size and valid,
// what was written is read, and garbage is not taken for a reason.
func FuzzDeadReasons(f *testing.F) {
	for _, data := range []string{
		"", "{}", "null", "[]", `{"reason":"failed","error":"x","attempts":3,"session":"0x1f","queue":"/q"}`,
		`{"reason":"timeout","attempts":-1,"due":-9223372036854775808,"priority":9223372036854775807}`,
		`{"reason":"x","key":"../x","keyUntil":3,"trace":"00-x"}`, `{"reason":"x","key":"0123456789abcdef0123456789abcdef","keyUntil":-3}`,
		`{"reason":1}`, `{"reason":"x","session":"-1"}`, `{"reason":"` + strings.Repeat("z", 2000) + `"}`, "\xff{", `{"reason":"failed","attempts":1e99}`,
		`{"id":"` + strings.Repeat("/", layout.GUIDLen) + `","bucket":"b-0-0"}`, `{"id":"` + strings.Repeat("a", layout.GUIDLen) + `","bucket":"b-0-0","until":-1}`,
	} {
		f.Add([]byte(data), data)
	}
	f.Add([]byte(nil), strings.Repeat("\x00\xff", 5000))
	f.Add([]byte(nil), strings.Repeat("é", 5000))
	f.Fuzz(func(t *testing.T, data []byte, text string) {
		if r, ok := layout.ParseDeadReason(data); ok && (r.Reason == "" || r.Attempts < 0 || r.Due > layout.MaxNumber || r.Due < -layout.MaxNumber || !utf8.ValidString(r.Error)) {
			t.Errorf("%+v", r)
		} else if k := r.ItemKey(); k.Hash != r.Key || k.Until != r.KeyUntil || (k.Hash == "") != (k == layout.ItemKey{}) {
			t.Errorf("%+v has the key %+v", r, k)
		}
		if h, ok := layout.ParseKeyHolder(data); ok && (h.Until < 0 || len(h.ID) != layout.GUIDLen || backend.CheckPath("/q/items/"+h.Bucket+"/"+h.ID) != nil || strings.Contains(h.ID, "/")) {
			t.Errorf("%+v", h)
		}
		in := layout.DeadReason{Reason: "failed", Error: text, Attempts: 3, Session: "0xffffffffffffffff", Queue: "/q", Priority: -7, Due: -2,
			Key: layout.HashKey(text), KeyUntil: 1700000000000, Trace: fuzzTrace}
		out := in.Encode()
		r, ok := layout.ParseDeadReason(out)
		if !ok || len(out) > layout.MaxReasonText+450 {
			t.Fatalf("%d bytes: %q", len(out), out)
		}
		if utf8.ValidString(text) && len(text) < 100 && r.Error != text || r.SessionID() != -1 {
			t.Errorf("%q has become %q", text, r.Error)
		}
		off := layout.PutOff{Error: text}.Encode()
		if p := layout.ParsePutOff(off); p.Error != r.Error || len(off) > layout.MaxReasonText+20 {
			t.Errorf("%d bytes: %q, want %q", len(off), p.Error, r.Error)
		}
		if p := layout.ParsePutOff(data); !utf8.ValidString(p.Error) {
			t.Errorf("%+v", p)
		}
		r.Error, in.Error = "", ""
		if !reflect.DeepEqual(r, in) {
			t.Errorf("%+v has become %+v", in, r)
		}
	})
}

// Whatever the data of the node with the options of an item: garbage is no options, and the data passes through a
// dead letter with the fields that this version does not know.
func FuzzItemOptions(f *testing.F) {
	for _, data := range []string{
		"", "{}", "null", "[]", " { } ", `{"maxAttempts":3}`, `{"maxAttempts":-3,"key":"a<b"}`, `{"maxAttempts":"x"}`, `{"maxAttempts":1e99}`,
		`{"later":{"x":[1,2]},"maxAttempts":1}`, "\xff{", "{\"x\":\"\xff\"}", `{"x":"` + strings.Repeat("z", 5000) + `"}`, `{"maxAttempts":1}{}`,
	} {
		f.Add([]byte(data), 3)
	}
	f.Fuzz(func(t *testing.T, data []byte, most int) {
		o, ok := layout.ParseItemOptions(data)
		if o.MaxAttempts < 0 || !ok && o != (layout.ItemOptions{}) || ok && len(data) > layout.MaxItemOptions {
			t.Errorf("%q: %+v, %t", data, o, ok)
		}
		r, read := layout.ParseDeadReason(layout.DeadReason{Reason: "failed", Options: data}.Encode())
		if !read || (r.Options != nil) != ok {
			t.Fatalf("%q in a dead letter: %+v, %t", data, r, read)
		}
		if ok {
			var before, after map[string]any
			if json.Unmarshal(data, &before) != nil || json.Unmarshal(r.Options, &after) != nil || !reflect.DeepEqual(before, after) {
				t.Errorf("%q has become %q", data, r.Options)
			}
		}
		in := layout.ItemOptions{MaxAttempts: max(most, 0)}
		out := in.Encode()
		if (out == nil) != (in == layout.ItemOptions{}) {
			t.Errorf("%+v is encoded as %q", in, out)
		}
		if back, ok := layout.ParseItemOptions(out); out != nil && (!ok || back != in) {
			t.Errorf("%+v has become %+v", in, back)
		}
	})
}

// The state of a schedule is refused, or comes back as it was read, and a planned time is claimed once.
func FuzzScheduleStates(f *testing.F) {
	run := `{"planned":3,"attempt":1,"node":"` + layout.RunName(3, 1, fuzzID) + `","began":3`
	for _, data := range []string{
		"", "{", "null", "[]", `{"since":0}`, `{"since":1}`, `{"since":9223372036854775807}`, `{"since":1,"claimed":[[1,2],[4,4]],"asked":[1,2]}`,
		`{"since":1,"claimed":[[2,1]]}`, `{"since":1,"claimed":[[1,3],[3,4]]}`, `{"since":1,"asked":[2,1]}`, `{"since":1,"runs":[` + run + `}]}`,
		`{"since":1,"runs":[` + run + `,"again":true}]}`, `{"since":1,"runs":[` + run + `,"outcome":"failed","error":"x","again":true},` + run + `,"took":-1}]}`,
		`{"since":1,"runs":[{"planned":3,"attempt":1,"node":"../..","began":3}]}`, `{"since":1,"runs":[` + run + `,"missed":2},` + run + `,"missed":-1}]}`,
	} {
		f.Add([]byte(data), int64(3))
	}
	f.Fuzz(func(t *testing.T, data []byte, planned int64) {
		s, err := layout.ParseScheduleState(data)
		if err != nil {
			if !errors.Is(err, layout.ErrDecode) || s.Since != 0 || s.Runs != nil {
				t.Errorf("%+v, %v", s, err)
			}
			return
		}
		text, err := s.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if again, err := layout.ParseScheduleState(text); err != nil {
			t.Errorf("%s: %+v, %v", text, again, err)
		}
		for _, r := range s.Runs {
			if err := backend.CheckPath("/" + r.Node); err != nil || strings.Contains(r.Node, "/") {
				t.Errorf("%q: %v", r.Node, err)
			}
		}
		c := s.Clone()
		if planned > 0 && planned <= layout.MaxDeadline {
			covered := slices.ContainsFunc(s.Claimed, func(r layout.TimeRange) bool { return r[0] <= planned && planned <= r[1] })
			if c.Claim(planned, 0) == covered || c.Claim(planned, planned-1) {
				t.Errorf("%d is claimed twice, or not at all, in %v: %v", planned, s.Claimed, c.Claimed)
			}
			if text, err = c.Encode(); err == nil {
				_, err = layout.ParseScheduleState(text)
			}
			if err != nil {
				t.Errorf("after the claim of %d: %s: %v", planned, text, err)
			}
		}
		c.Trim(1)
		ended := 0
		for _, r := range c.Runs {
			if !r.Lasts() && !r.Again {
				ended++
			}
		}
		if ended > 1 {
			t.Errorf("%d ended runs stay", ended)
		}
	})
}
