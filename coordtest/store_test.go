package coordtest_test

import (
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/coordtest"
)

// store is a Provider without faults of its own, as a user writes one.
type store struct{}

func (store) Root() string { return "/" }

func (store) Connect(string) (coordtest.Connection, error) { return conn{memory.New(nil)}, nil }

type conn struct{ backend.Backend }

func (conn) Cut()                {}
func (conn) Refuse(bool)         {}
func (conn) Blackhole(bool)      {}
func (conn) Delay(time.Duration) {}
func (conn) Expire(int64) error  { return nil }
func (conn) Close() error        { return nil }
