//go:build linux

package faulttest

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/go-coord/coord/internal/fence"
)

// terms returns all terms in the order of the shared clock, each with the name of the leader
// as its text.
func (r *reign) terms() (terms []line) {
	for _, a := range r.all {
		for _, l := range a.Reports() {
			if l.Kind == "leading" {
				l.Text = a.name
				terms = append(terms, l)
			}
		}
	}
	slices.SortFunc(terms, func(a, b line) int { return cmp.Compare(a.At, b.At) })
	return terms
}

// exclusive checks that no term began before the previous one had ended for its leader too,
// where that is guaranteed, and that tokens grow.
func (r *reign) exclusive() {
	terms := r.terms()
	for i := 1; i < len(terms); i++ {
		old, l := terms[i-1], terms[i]
		if l.Token <= old.Token {
			r.t.Errorf("%s began to lead with token %#x after %s with %#x", l.Text, l.Token, old.Text, old.Token)
		}
		if r.unheard[old.Token] {
			continue
		}
		a := r.all[slices.IndexFunc(r.all, func(a *actor) bool { return a.name == old.Text })]
		// A leader that gives its term back says so before the release. Its report of Done comes
		// from another goroutine, which a busy machine can run after the next leader's.
		ended := func(kind string) bool {
			end, ok := a.said(kind, func(d line) bool { return d.Token == old.Token })
			return ok && end.At <= l.At
		}
		if !ended("done") && !ended("releasing") {
			r.t.Errorf("%s began to lead with token %#x while %s did with %#x", l.Text, l.Token, old.Text, old.Token)
		}
	}
}

// check checks the invariants over all rounds.
func (r *reign) check(n int) {
	t := r.t
	t.Helper()
	writes := r.resource.register.Writes()
	wrong, overlaps, refused := fence.Check(writes)
	for _, w := range wrong {
		t.Error(w)
	}
	if refused != r.ends || overlaps != r.ends {
		t.Errorf("%d writes refused, %d overlaps without the fence, want %d", refused, overlaps, r.ends)
	}
	for _, w := range writes {
		if !w.Accepted && !r.deposed[w.Hold] {
			t.Errorf("a write under %s was refused although its term had not ended", w.Hold)
		}
	}
	terms, led := r.terms(), make(map[byte]int)
	known := make(map[int64]bool)
	for _, l := range terms {
		known[l.Token] = true
		led[l.Text[0]]++
	}
	// The observer saw the events in order, and only leaders as ready. (The first candidate
	// in the queue can have given up, or lost its session, before it leads: the observer sees
	// such candidates as elected.)
	seen := int64(0)
	for _, l := range r.observer.Reports() {
		if l.Kind != "seen" || l.Token == 0 {
			continue
		}
		if l.Token < seen || !known[l.Token] && strings.HasPrefix(l.Text, "ready") {
			t.Errorf("the observer saw %v after token %#x", l, seen)
		}
		seen = l.Token
	}
	for _, fault := range faults {
		t.Logf("figure: %s of the leader to the next term, session timeout %v, margin %v: %v; %d rounds",
			fault, electionTimeout, electionMargin, *r.took[fault], len(*r.took[fault]))
	}
	t.Logf("figure: a plain commit meanwhile, for comparison: %v", r.probe.all())
	t.Logf("figure: leader without network: Done before the next term by %v; %d late", r.gap, r.late)
	t.Logf("figure: begin of the next term to the observer's news that its leader is ready: %v", r.told)
	t.Logf("figure: %d ends of terms: %d writes accepted, %d refused, all of deposed leaders, %d overlaps without the fence; %d terms, by candidate %v",
		n, len(writes)-refused, refused, overlaps, len(terms), slices.Sorted(maps.Values(led)))
}
