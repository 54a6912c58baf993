package zookeeper

import (
	"context"
	"fmt"

	"github.com/go-coord/coord/backend"
)

// The size of a multiRead. The data of a node has at most 1 MiB by default, so the data of
// mostReads nodes fits into a reply. How much there is to read shows only in the replies, and
// a long one holds up the others and takes memory of the server. So a request asks for as
// many nodes as fill readGoal, if they are as large as the nodes of earlier replies. Lists of children have no
// limit: a reply that is longer than maxFrame is skipped, and a smaller request follows.
const (
	mostReads    = 64
	readGoal     = 1 << 20
	firstPerRead = readGoal / 16 // until there was a reply
)

// ReadMany reads the data or the children of nodes with as few requests as their size allows.
// The requests follow each other: if several were under way when contact broke, a later one
// could have been answered before an earlier one.
func (s *session) ReadMany(ctx context.Context, reads ...backend.Read) ([]backend.ReadResult, error) {
	if err := backend.CheckReads(reads); err != nil {
		return nil, err
	}
	for _, r := range reads {
		if err := checkRead("read", r.Path); err != nil {
			return nil, err
		}
	}
	if !s.Features().Has(backend.Batches) {
		return nil, &backend.Error{Op: "read", Path: reads[0].Path, Err: backend.ErrUnsupported}
	}
	results := make([]backend.ReadResult, 0, len(reads))
	for len(results) < len(reads) {
		next := s.portion(reads[len(results):])
		more, err := s.readPortion(ctx, next, results)
		if err != nil {
			s.refusedFeature(backend.Batches, err)
			return nil, &backend.Error{Op: "read", Path: reads[0].Path, Err: reason(err)}
		}
		results = more
	}
	return results, nil
}

// portion returns the reads of the next request.
func (s *session) portion(reads []backend.Read) []backend.Read {
	s.mu.Lock()
	most := min(len(reads), mostReads, max(1, readGoal/s.perRead))
	s.mu.Unlock()
	size, longest := 0, min(backend.MaxRequest, s.frameLimit()-64)
	for n, r := range reads[:most] {
		if size += 32 + len(r.Path); size > longest && n > 0 {
			return reads[:n]
		}
	}
	return reads[:most]
}

// readPortion makes one request, and appends its results. It appends none if the reply was too
// long and the reads have to be divided.
func (s *session) readPortion(ctx context.Context, reads []backend.Read, results []backend.ReadResult) ([]backend.ReadResult, error) {
	c := s.newCall(opMultiRead)
	defer s.release(c)
	c.frame, c.count = encodeMultiRead(c.frame, reads), len(reads)
	if err := s.read(ctx, c, "read", reads[0].Path); err != nil {
		return nil, err
	}
	a := &c.answer
	s.mu.Lock()
	s.perRead = max(a.size/len(reads), s.perRead/4, 1)
	s.mu.Unlock()
	if a.skipped && len(reads) == 1 {
		a.reads = []nodeAnswer{{code: codeTooLong}}
	}
	for i, r := range a.reads {
		results = append(results, backend.ReadResult{Data: r.data, Stat: r.stat, Names: r.names, Err: readError(r.code, reads[i])})
	}
	return results, nil
}

// readError returns the error of one read of many: that of Get or Children.
func readError(code int32, r backend.Read) error {
	op := "get"
	if r.Children {
		op = "children"
	}
	var err error
	switch verdict, cause := judge(code); {
	case verdict == granted:
		return nil
	case code == codeTooLong:
		err = errTooLong
	case verdict == refused:
		err = withNode(code, cause, op, r.Path)
	default:
		err = fmt.Errorf("%w: %w", backend.ErrUnsupported, cause)
	}
	return &backend.Error{Op: op, Path: r.Path, Err: err}
}
