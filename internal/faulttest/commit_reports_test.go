//go:build linux

package faulttest

import "time"

// said applies a report of a process, after the whole log was applied. The clocks differ by at
// most tolerance.
func (h *commitHistory) said(l line, clock, tolerance time.Duration) {
	switch l.Kind {
	case "prepare", "commit", "abort", "told":
	default:
		return
	}
	in := h.all[commitKey{l.Path, l.Token}]
	if in == nil {
		h.faultf("%v: the log has no such transaction", l)
		return
	}
	if l.Kind == "told" {
		h.count["told"]++
		in.told = true
		if l.Text != in.decided {
			h.faultf("%v was decided %q, but a process reported %q", in, in.decided, l.Text)
		}
		return
	}
	site := in.sites[l.Text]
	if site == nil {
		h.faultf("%v: no such site", l)
		return
	}
	h.count["callback"]++
	at := time.Unix(0, int64(l.At+clock))
	if !site.acked.IsZero() && at.After(site.acked.Add(tolerance)) {
		h.faultf("%s of %v at %s %v after its acknowledgement", l.Kind, in, l.Text, at.Sub(site.acked))
	}
	if l.Kind == "prepare" {
		site.prepared = true
		return
	}
	site.calls[l.Kind]++
	if l.Kind != in.decided || at.Before(in.when.Add(-tolerance)) {
		h.faultf("%s of %v at %s, decided %q %v later", l.Kind, in, l.Text, in.decided, in.when.Sub(at))
	}
}

// end checks the final state.
func (h *commitHistory) end() {
	if len(h.all) == 0 {
		h.faultf("the log has no transaction")
	}
	commits := make(map[string]int)
	for _, in := range h.all {
		if in.decided == "commit" {
			commits[in.key.record]++
		}
		if in.decided == "" || !in.ended {
			h.faultf("%v exists at the end, decided %q", in, in.decided)
		}
		// A proposer can be killed between the notification and its report.
		if !in.told && in.toldBy != in.madeBy && !h.partial {
			h.faultf("%v: no proposer was notified", in)
		}
		for name, site := range in.sites {
			if site.branch || site.vote || !site.done {
				h.faultf("%v: %s has not acknowledged", in, name)
			}
			if site.calls["commit"] > 0 && site.calls["abort"] > 0 || site.calls[in.decided] == 0 {
				h.faultf("%v, decided %q: callbacks of %s %v", in, in.decided, name, site.calls)
			}
			if site.filled != "" && !site.prepared {
				h.faultf("%v: %s has voted %q without a call of Prepare", in, name, site.filled)
			}
		}
	}
	// A record that is created late, after a repetition of the same Propose, has no effect.
	for record, n := range commits {
		if n > 1 {
			h.faultf("%s was committed %d times", record, n)
		}
	}
}
