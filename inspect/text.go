package inspect

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// String returns the Report as a text of several lines for people, aligned, with
// times as in RFC 3339. Text that other clients have written is shown such that it
// can neither end a line nor confuse a terminal. The text may change from one version
// to the next; programs use the fields.
func (in *Report) String() string {
	p := &page{}
	p.line("%s: %s: %s", printable(in.Path), in.Recipe, in.Summary)
	if in.Mutex != nil {
		p.contenders(in.Mutex)
	}
	if in.RWMutex != nil {
		p.contenders(in.RWMutex)
	}
	if in.Election != nil {
		p.contenders(in.Election)
	}
	p.semaphore(in.Semaphore)
	p.group(in.Group)
	p.value(in.Value)
	p.barrier(in.Barrier)
	p.doubleBarrier(in.DoubleBarrier)
	p.queue(in.Queue)
	p.twoPhase(in.TwoPhase)
	p.shards(in.Shards)
	p.schedule(in.Schedule)
	if in.Inbox != nil {
		p.sites([]Site{*in.Inbox})
	}
	p.directory(in.Directory)
	p.line("")
	if in.ForeignCount > 0 {
		names := make([]string, len(in.Foreign))
		for i, name := range in.Foreign {
			names[i] = printable(name)
		}
		more := ""
		if in.ForeignCount > len(names) {
			more = ", …"
		}
		p.line("foreign: %s%s", strings.Join(names, ", "), more)
	}
	for _, note := range in.Notes {
		p.line("note: %s", note)
	}
	if in.Truncated {
		p.line("truncated: there is more than %s show", plural(in.Reads, "read"))
	}
	p.line("read at %s, one node after the other: no picture of one moment (%s)", stamp(in.At), plural(in.Reads, "read"))
	return strings.TrimLeft(p.text.String(), "\n")
}

func (p *page) directory(d *Directory) {
	if d == nil {
		return
	}
	rows := [][]string{{"name", "is", "summary"}}
	for _, b := range d.Below {
		rows = append(rows, []string{printable(b.Name), b.Recipe, b.Summary})
	}
	p.table(rows...)
	if rest := d.Nodes - len(d.Below); rest > 0 {
		p.line("  … and %d more", rest)
	}
}

func (p *page) contenders(l *Line) {
	rows := [][]string{{"#", "is", "id", "host", "token", "session", "came", "waits for", "bytes", "data"}}
	number := make(map[string]int)
	for i, e := range l.Contenders {
		number[e.Name] = i + 1
	}
	var asked []string
	for i, e := range l.Contenders {
		is := e.Role + " waits"
		if e.Holds {
			is = e.Role + " holds"
		}
		switch {
		case e.Role == "exclusive":
			is = strings.TrimPrefix(is, "exclusive ")
		case e.Role == "candidate" && e.Holds && e.Ready:
			is = "leads, ready"
		case e.Role == "candidate" && e.Holds:
			is = "leads"
		case e.Role == "candidate":
			is = "waits"
		}
		id := ""
		if e.Role == "candidate" || e.ID != "" {
			id = strconv.Quote(shorten(e.ID))
		}
		rows = append(rows, slices.Concat([]string{strconv.Itoa(i + 1), is, id, e.Host, token(e.Token)}, e.who(), []string{numbers(number, e.WaitsFor)}, e.what()))
		if r := e.Revocation; r != nil {
			asked = append(asked, fmt.Sprintf("#%d is asked to give it up%s", i+1, r.text()))
		}
		if e.Keep != "" {
			asked = append(asked, fmt.Sprintf("#%d: its client may keep the lock for %s after a release", i+1, e.Keep))
		}
		if len(e.Announcement) > 0 {
			asked = append(asked, fmt.Sprintf("#%d announces %s", i+1, quoteData(e.Announcement)))
		} else if e.AnnouncementSize > 0 {
			asked = append(asked, fmt.Sprintf("#%d announces %s", i+1, plural(e.AnnouncementSize, "byte")))
		}
	}
	p.table(rows...)
	if rest := l.Holders + l.Waiting - len(l.Contenders); rest > 0 {
		p.line("  … and %d more", rest)
	}
	for _, line := range asked {
		p.line("  %s", line)
	}
}

func (r *Revocation) text() string {
	s := ""
	if r.By != "" {
		s += " by " + strconv.Quote(shorten(r.By))
	}
	if !r.At.IsZero() {
		s += " at " + stamp(r.At)
	}
	if r.Reason != "" {
		s += ": " + strconv.Quote(shorten(r.Reason))
	}
	if r.Force {
		s += "; its node will be deleted by force"
	}
	return s
}

func (p *page) semaphore(s *Semaphore) {
	if s == nil {
		return
	}
	rows := [][]string{{"#", "is", "id", "permits", "session", "came", "waits for", "short of", "bytes", "data"}}
	number := make(map[string]int)
	for i, e := range s.Requests {
		number[e.Name] = i + 1
	}
	for i, e := range s.Requests {
		is, id, short := "waits", "", ""
		if e.Granted {
			is = "holds"
		}
		if e.ID != "" {
			id = strconv.Quote(shorten(e.ID))
		}
		if e.Short > 0 {
			short = strconv.FormatInt(e.Short, 10)
		}
		rows = append(rows, slices.Concat([]string{strconv.Itoa(i + 1), is, id, strconv.Itoa(e.Weight)}, e.who(), []string{numbers(number, e.WaitsFor), short}, e.what()))
	}
	p.table(rows...)
	if rest := s.Holders + s.Waiting - len(s.Requests); rest > 0 {
		p.line("  … and %d more", rest)
	}
}

func (p *page) group(g *Group) {
	if g == nil {
		return
	}
	rows := [][]string{{"id", "is", "token", "session", "joined", "bytes", "data"}}
	for i, m := range slices.Concat(g.Members, g.Ghosts) {
		is := "member"
		if i >= len(g.Members) {
			is = "ghost"
		}
		rows = append(rows, slices.Concat([]string{printable(m.ID), is, token(m.Token)}, m.who(), m.what()))
	}
	p.table(rows...)
	if rest := g.Count + g.GhostCount - len(rows) + 1; rest > 0 {
		p.line("  … and %d more", rest)
	}
}

func (p *page) value(v *Value) {
	if v == nil {
		return
	}
	p.table(
		[]string{"czxid", "mzxid", "version", "since", "modified", "session", "bytes", "data"},
		[]string{
			strconv.FormatInt(v.Czxid, 10), strconv.FormatInt(v.Mzxid, 10), strconv.Itoa(int(v.Version)),
			stamp(v.Since), stamp(v.Modified), v.Session, strconv.Itoa(v.Size), quoteData(v.Data),
		},
	)
}

func (p *page) barrier(b *Barrier) {
	if b != nil {
		p.table([]string{"set since", "session"}, []string{stamp(b.Since), b.Session})
	}
}

func (p *page) doubleBarrier(d *DoubleBarrier) {
	if d == nil {
		return
	}
	if d.Open {
		p.line("")
		p.line("  the round opened at %s; %d of its %d have left", stamp(d.Since), d.Left, d.N)
	}
	rows := [][]string{{"is", "session", "came", "bytes", "data"}}
	for is, list := range [][]Node{d.Inside, d.Waiting, d.Extra} {
		for _, n := range list {
			rows = append(rows, slices.Concat([]string{[]string{"inside", "waits", "joined late"}[is]}, n.who(), n.what()))
		}
	}
	p.table(rows...)
	if rest := d.InsideCount + d.WaitingCount + d.ExtraCount - len(rows) + 1; rest > 0 {
		p.line("  … and %d more", rest)
	}
}

func (p *page) queue(q *Queue) {
	if q == nil {
		return
	}
	rows := [][]string{{"item", "is", "priority", "due", "attempt", "session", "claimed", "put", "bytes", "data"}}
	item := func(it *Item, is, attempt, session, claimed string) {
		priority := ""
		if it.Priority != 0 {
			priority = strconv.FormatInt(it.Priority, 10)
		}
		rows = append(rows, []string{it.ID, is, priority, stamp(it.Due), attempt, session, claimed, stamp(it.Since), size(it.Size, it.Unread), quoteData(it.Data)})
	}
	for _, c := range q.Claims {
		item(&c.Item, "claimed", strconv.Itoa(c.Item.Attempts), c.Session, stamp(c.Since))
	}
	if n := q.Next; n != nil {
		attempt := ""
		if n.Attempts > 0 {
			attempt = fmt.Sprintf("%d failed", n.Attempts)
		}
		item(n, "next", attempt, "", "")
	}
	p.table(rows...)
	if rest := q.Claimed - len(q.Claims); rest > 0 {
		p.line("  … and %d more claimed", rest)
	}
	if !q.NextDue.IsZero() {
		p.line("")
		p.line("  the first of the delayed is due at %s", stamp(q.NextDue))
	}
	if !q.Oldest.IsZero() {
		p.line("  the oldest of the ready has waited since %s", stamp(q.Oldest))
	}
	if q.Litter > 0 {
		p.line("  %s left of items that others deleted", plural(q.Litter, "node"))
	}
}

func (p *page) twoPhase(t *TwoPhase) {
	if t == nil {
		return
	}
	for _, tx := range t.Transactions {
		p.line("")
		p.line("  transaction %s is %s: made at %s, deadline %s, %s", printable(tx.ID), tx.State, stamp(tx.Since), stamp(tx.Deadline), plural(tx.Size, "byte"))
		if tx.By != "" {
			reason := ""
			if tx.Reason != "" {
				reason = ": " + strconv.Quote(shorten(tx.Reason))
			}
			p.line("    decided by %s%s", strconv.Quote(shorten(tx.By)), reason)
		}
		if tx.Overdue {
			p.line("    it is past its deadline and not decided")
		}
		if !tx.InDoubt.IsZero() {
			p.line("    in doubt at a site since %s", stamp(tx.InDoubt))
		}
		switch {
		case tx.Proposed:
			p.line("    a Propose of it is under way")
		case tx.Kept:
			p.line("    it is kept until Forget")
		case !tx.Told:
			p.line("    no Propose of it is under way, and its decision is still owed: Recover takes it up")
		}
		if len(tx.Payload) > 0 {
			p.line("    payload %s", quoteData(tx.Payload))
		}
		rows := [][]string{{"site", "vote", "since", "acknowledged", "served"}}
		for _, v := range tx.Votes {
			rows = append(rows, []string{printable(v.Site), orDash(v.Vote), stamp(v.Since), yesNo(v.Acknowledged), yesNo(v.Served)})
		}
		p.table(rows...)
	}
	p.sites(t.Sites)
}

func (p *page) sites(sites []Site) {
	rows := [][]string{{"site", "served", "ballots"}}
	branches := [][]string{{"site", "ballot of", "is", "vote", "made", "voted"}}
	for _, s := range sites {
		rows = append(rows, []string{printable(s.Site), yesNo(s.Served), strconv.Itoa(s.Count)})
		for _, b := range s.Branches {
			is := b.State
			if b.Unread != "" {
				is = b.Unread
			}
			branches = append(branches, []string{printable(s.Site), printable(b.ID), is, orDash(b.Vote), stamp(b.Since), stamp(b.VotedAt)})
		}
	}
	p.table(rows...)
	p.table(branches...)
}
