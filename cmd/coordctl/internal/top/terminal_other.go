//go:build !unix

package top

import (
	"context"
	"os"
)

// watchSize returns nil: the size is read for each page, at least once a second.
func watchSize() (<-chan os.Signal, func()) { return nil, func() {} }

// suspend does nothing, because there are no jobs.
func (t *terminal) suspend(context.Context) error { return nil }
