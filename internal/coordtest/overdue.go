package coordtest

import (
	"context"
	"sync/atomic"
	"time"
)

// Overdue is a context whose deadline has passed when Late is set. It has not ended: its timer is late.
type Overdue struct {
	context.Context
	Late *atomic.Bool
}

func (c Overdue) Deadline() (time.Time, bool) {
	if !c.Late.Load() {
		return time.Time{}, false
	}
	return time.Now(), true
}
