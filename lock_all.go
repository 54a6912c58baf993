package coord

import "context"

// joinerOf returns l as a joiner, or nil. A wrapper of another package is none, since its own
// Lock must be called.
func joinerOf(l Locker) joiner {
	if j := l.orderKey().joiner; any(j) == any(l) {
		return j
	}
	return nil
}

// neighbours returns the calls for those of the lockers, which are in path order, that one
// joint commit can have, counted from the first one, or nil if these are fewer than two.
func neighbours(ctx context.Context, lockers []Locker) []joint {
	first := joinerOf(lockers[0])
	if first == nil || len(lockers) == 1 {
		return nil
	}
	c := lockers[0].orderKey().client
	s, err := c.session(ctx)
	if err != nil {
		return nil // Lock returns the error
	}
	const perLine = 2*128 + 256 // two operations, the name of the node, and the mark
	limits, size := s.b.Limits(), 0
	list := make([]joint, 0, len(lockers))
	for i, l := range lockers {
		j := joinerOf(l)
		if j == nil || l.orderKey().client != c {
			break
		}
		r := j.newRequest()
		size += perLine + 2*len(l.orderKey().path.full) + len(r.data)
		if size > limits.Bytes || limits.Ops > 0 && 2*(i+1) > limits.Ops {
			break
		}
		list = append(list, joint{joiner: j, l: j.line(), r: r})
	}
	if len(list) < 2 {
		return nil
	}
	return list
}

// lockTogether acquires neighbours, and adds their holds to the set: the first n of the list.
// The next lock, if any, is one for whose local turn the call has to wait, or the first one had
// a node of the previous holder, which must not go unwatched during a commit. together reports
// whether all n were free.
func (s *HoldSet) lockTogether(ctx context.Context, list []joint) (n int, wait context.Context, together bool, err error) {
	ctx = s.within(ctx)
	for i := range list {
		if err := list[i].begin(ctx, list[i].r); err != nil {
			return 0, ctx, false, err
		}
	}
	if err := list[0].enterTurn(ctx); err != nil {
		return 0, ctx, false, err
	}
	n = 1
	if b := list[0].r.reserved.state; b == noReserved || b == reservedKept { // a handed-over node is granted first
		for n < len(list) && list[n].tryTurn(ctx) {
			n++
		}
	}
	list = list[:n]
	enterTogether(ctx, list)
	together = true
	for i := range list {
		j := &list[i]
		if i > 0 {
			ctx = s.within(ctx)
		}
		if err := j.enterTurn(ctx); err != nil {
			return 0, ctx, false, err
		}
		j.r.beforeWait = func() {
			together = false
			leavePlaces(list[i+1:])
		}
		h, err := j.acquire(ctx, j.r)
		if err != nil {
			leavePlaces(list[i+1:])
			return 0, ctx, false, err
		}
		s.holds = append(s.holds, h)
	}
	return n, ctx, together, nil
}
