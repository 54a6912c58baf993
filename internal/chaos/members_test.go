//go:build linux

package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
)

const groupPath = "/group"

// memberIs is a member of the group.
type memberIs struct {
	Token int64
	Value string
}

// membersReport is what a client knows of the group.
type membersReport struct {
	Watched map[string]memberIs // the latest members, by id
	Folded  map[string]int64    // the tokens that the reports of Joined and Left add up to
	Own     string              // the client's value, or "" if that is not certain
	Updates int                 // elements received
	Wrong   []string            // elements that do not follow from earlier ones
}

// membership is a client's part of the group: it comes and goes, changes its value, and
// follows the group.
type membership struct {
	g      *coord.Group[string]
	id     string
	settle func() bool // it has to stay as it is

	mu    sync.Mutex
	known membersReport
	last  map[string]int64 // the latest token of each id
}

func newMembership(c *coord.Client, id string, settle func() bool) *membership {
	return &membership{
		g: coord.NewGroup[string](c, groupPath, nil), id: id, settle: settle,
		known: membersReport{Folded: make(map[string]int64)},
		last:  make(map[string]int64),
	}
}

// keep is a member, and follows the group, until ctx ends.
func (m *membership) keep(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() {
		for u := range m.g.Watch(ctx) {
			m.fold(u)
		}
	})
	m.comeAndGo(ctx)
	wg.Wait()
}

func (m *membership) comeAndGo(ctx context.Context) {
	const patience = 10 * time.Second
	pause := func() {
		select {
		case <-time.After(150 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	own := func(value string) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.known.Own = value
	}
	for n := 0; ctx.Err() == nil; {
		n++
		value := fmt.Sprint(m.id, " ", n)
		joining, cancel := context.WithTimeout(ctx, patience)
		member, err := m.g.Join(joining, m.id, value)
		cancel()
		if err != nil { // no contact, or a node of its own that is not gone yet
			pause()
			continue
		}
		own(value)
		for range 5 {
			pause()
			if m.settle() && member.Err() == nil {
				<-ctx.Done()
				return
			}
			n++
			value := fmt.Sprint(m.id, " ", n)
			own("")
			setting, cancel := context.WithTimeout(ctx, patience)
			err := member.SetValue(setting, value)
			cancel()
			if err == nil {
				own(value)
			}
			if err := member.Err(); err != nil && ctx.Err() == nil {
				m.wrong("the membership ended: %v", err)
			}
		}
		own("")
		if m.settle() { // a member that leaves now might not come back in time
			<-ctx.Done()
			return
		}
		if err := member.Leave(); err != nil && !errors.Is(err, coord.ErrClosed) && !errors.Is(err, coord.ErrNoSpace) && ctx.Err() == nil {
			m.wrong("leave: %v", err)
		}
	}
}

func (m *membership) wrong(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known.Wrong = append(m.known.Wrong, fmt.Sprintf(format, args...))
}

// fold applies an element of the watch.
func (m *membership) fold(u coord.GroupUpdate[string]) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := &m.known
	errorf := func(format string, args ...any) { k.Wrong = append(k.Wrong, fmt.Sprintf(format, args...)) }
	if u.Err != nil {
		if !errors.Is(u.Err, coord.ErrClosed) {
			errorf("the watch ended: %v", u.Err)
		}
		return
	}
	k.Updates++
	for _, l := range u.Left {
		if k.Folded[l.ID] != l.Token {
			errorf("%s left as %#x and had joined as %#x", l.ID, l.Token, k.Folded[l.ID])
		}
		delete(k.Folded, l.ID)
	}
	for _, j := range u.Joined {
		if k.Folded[j.ID] != 0 || j.Token <= m.last[j.ID] {
			errorf("%s joined as %#x, was there as %#x, and before as %#x", j.ID, j.Token, k.Folded[j.ID], m.last[j.ID])
		}
		k.Folded[j.ID], m.last[j.ID] = j.Token, j.Token
	}
	k.Watched = make(map[string]memberIs)
	for _, l := range u.Members {
		if l.Err != nil {
			errorf("%s cannot be read: %v", l.ID, l.Err)
		}
		if k.Folded[l.ID] != l.Token {
			errorf("%s is listed as %#x and had joined as %#x", l.ID, l.Token, k.Folded[l.ID])
		}
		k.Watched[l.ID] = memberIs{l.Token, l.Value}
	}
	if len(k.Watched) != len(k.Folded) {
		errorf("%d members are listed, and %d had joined", len(k.Watched), len(k.Folded))
	}
}

func (m *membership) report() *membersReport {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.known
	r.Folded, r.Wrong = maps.Clone(r.Folded), slices.Clone(r.Wrong)
	return &r
}

// realMembers reads the members from their nodes. Of several nodes with one id, that with the
// lowest number is the member.
func realMembers(ctx context.Context, s backend.Session) (map[string]memberIs, error) {
	if err := s.Sync(ctx, groupPath); err != nil {
		return nil, err
	}
	names, _, err := s.Children(ctx, groupPath, nil)
	if errors.Is(err, backend.ErrNotFound) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	members, numbers := make(map[string]memberIs), make(map[string]string)
	for _, name := range names {
		_, rest, found := strings.Cut(name, "-member-")
		at := strings.LastIndexByte(rest, '-')
		if !found || at < 0 {
			return nil, fmt.Errorf("a node %s in %s", name, groupPath)
		}
		id, number := rest[:at], rest[at+1:]
		data, stat, err := s.Get(ctx, groupPath+"/"+name, nil)
		if errors.Is(err, backend.ErrNotFound) {
			continue
		} else if err != nil {
			return nil, err
		}
		var value string
		if err := json.Unmarshal(data, &value); err != nil {
			return nil, err
		}
		if other, ok := numbers[id]; !ok || number < other {
			members[id], numbers[id] = memberIs{stat.Czxid, value}, number
		}
	}
	return members, nil
}

// checkMembers compares what a client knows of the group with the nodes of the members.
func checkMembers(name string, got *membersReport, members map[string]memberIs) (wrong []string) {
	if got == nil {
		return []string{name + " has no report of the group"}
	}
	tokens := make(map[string]int64)
	for id, m := range members {
		tokens[id] = m.Token
	}
	if !maps.Equal(got.Watched, members) {
		wrong = append(wrong, fmt.Sprintf("%s watches the members %+v, which are %+v", name, got.Watched, members))
	}
	if !maps.Equal(got.Folded, tokens) {
		wrong = append(wrong, fmt.Sprintf("the joins and leaves that %s has seen add up to %v; the members are %+v", name, got.Folded, members))
	}
	if own, ok := members[name]; !ok || got.Own != "" && own.Value != got.Own {
		wrong = append(wrong, fmt.Sprintf("%s is the member %+v and set %q", name, own, got.Own))
	}
	if got.Updates == 0 {
		wrong = append(wrong, fmt.Sprintf("%s was told nothing of the group", name))
	}
	for _, w := range got.Wrong {
		wrong = append(wrong, fmt.Sprintf("the group, as %s sees it: %s", name, w))
	}
	return wrong
}

func TestTheCheckOfTheMembersFindsADifference(t *testing.T) {
	members := map[string]memberIs{"p": {5, "p 1"}, "q": {7, "q 2"}}
	good := func() *membersReport {
		return &membersReport{Watched: maps.Clone(members), Folded: map[string]int64{"p": 5, "q": 7}, Own: "p 1", Updates: 1}
	}
	for _, tc := range []struct {
		name   string
		change func(r *membersReport)
		want   string
	}{
		{"equal", func(*membersReport) {}, ""},
		{"unsure of its value", func(r *membersReport) { r.Own = "" }, ""},
		{"a member too few", func(r *membersReport) { delete(r.Watched, "q") }, "watches the members"},
		{"an old value", func(r *membersReport) { r.Watched["q"] = memberIs{7, "q 1"} }, "watches the members"},
		{"a member that has left", func(r *membersReport) { r.Folded["r"] = 3 }, "add up to"},
		{"another incarnation", func(r *membersReport) { r.Folded["q"] = 6 }, "add up to"},
		{"a lost value of its own", func(r *membersReport) { r.Own = "p 2" }, "set"},
		{"told nothing", func(r *membersReport) { r.Updates = 0 }, "nothing"},
		{"told nonsense", func(r *membersReport) { r.Wrong = []string{"twice"} }, "twice"},
	} {
		r := good()
		tc.change(r)
		wrong := checkMembers("p", r, members)
		if tc.want == "" && len(wrong) > 0 || tc.want != "" && (len(wrong) != 1 || !strings.Contains(wrong[0], tc.want)) {
			t.Errorf("%s: %q, want %q", tc.name, wrong, tc.want)
		}
	}
	in := func(id string, token int64) coord.Member[string] { return coord.Member[string]{ID: id, Token: token} }
	type update = coord.GroupUpdate[string]
	type list = []coord.Member[string]
	first := update{Members: list{in("a", 1)}, Joined: list{in("a", 1)}}
	for name, tc := range map[string]struct {
		next  update
		wrong int
	}{
		"a new value":           {update{Members: list{in("a", 1)}}, 0},
		"a new incarnation":     {update{Members: list{in("a", 2)}, Joined: list{in("a", 2)}, Left: list{in("a", 1)}}, 0},
		"joined twice":          {update{Members: list{in("a", 1)}, Joined: list{in("a", 1)}}, 1},
		"an earlier one":        {update{Members: list{in("a", 1)}, Joined: list{in("a", 1)}, Left: list{in("a", 1)}}, 1},
		"a stranger left":       {update{Members: list{in("a", 1)}, Left: list{in("b", 1)}}, 1},
		"not told that it left": {update{}, 1},
		"not told that it came": {update{Members: list{in("a", 1), in("b", 2)}}, 2},
	} {
		m := &membership{known: membersReport{Folded: make(map[string]int64)}, last: make(map[string]int64)}
		m.fold(first)
		m.fold(tc.next)
		if n := len(m.known.Wrong); n != tc.wrong {
			t.Errorf("%s: %q, want %d", name, m.known.Wrong, tc.wrong)
		}
	}
}

// The members of a run agree when sessions have ended meanwhile.
func TestMembersComeAndGoAndAgree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(&memory.Options{SessionTimeout: sessionTimeout})
		ctx, cancel := context.WithCancel(t.Context())
		var done sync.WaitGroup
		var mu sync.Mutex
		settled := false
		settle := func() bool {
			mu.Lock()
			defer mu.Unlock()
			return settled
		}
		var all []*membership
		var clients []*coord.Client
		for _, id := range []string{"p", "q", "r"} {
			c, err := coord.Open(ctx, store.Link(id), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			m := newMembership(c, id, settle)
			all, clients = append(all, m), append(clients, c)
			done.Go(func() { m.keep(ctx) })
		}
		for i := range 9 {
			time.Sleep(1100 * time.Millisecond)
			s, err := clients[i%3].Session(ctx)
			if err != nil {
				t.Fatal(err)
			}
			store.Link(all[i%3].id).Expire(s.ID())
		}
		mu.Lock()
		settled = true
		mu.Unlock()
		time.Sleep(2 * sessionTimeout)
		reader, err := store.Open(ctx)
		if err != nil {
			t.Fatal(err)
		}
		members, err := realMembers(ctx, reader)
		if err != nil || len(members) != len(all) {
			t.Errorf("%+v, %v", members, err)
		}
		for _, m := range all {
			r := m.report()
			for _, w := range checkMembers(m.id, r, members) {
				t.Error(w)
			}
			if r.Updates < 10 {
				t.Errorf("%s was told %d times", m.id, r.Updates)
			}
		}
		reader.Close()
		cancel()
		done.Wait()
	})
}
