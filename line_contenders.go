package coord

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"
)

// A Contender is a client's request in the queue for a lock. The first one holds the
// lock.
type Contender struct {
	Path    string    // of its node, absolute
	Token   int64     // Hold.Token, now or after the grant; zero for a reader, also after a downgrade
	Session int64     // the owner of the node
	Since   time.Time // the creation of the node, by the service's clock
	ID      string
	Data    []byte
}

// contenderJSON is the stored form of the ID and the Data of a contender for a lock.
type contenderJSON struct {
	ID   string `json:"id"`
	Data []byte `json:"data,omitempty"`
}

type contenderEnvelope struct {
	Contender *contenderJSON `json:"coord-contender"`
}

var contenderStart = []byte(`{"coord-contender":`)

// encodeContender returns the data of a contender's node. That is Data unchanged if
// there is no ID and Data cannot be mistaken for an envelope.
func encodeContender(id string, data []byte) ([]byte, error) {
	if !utf8.ValidString(id) {
		return nil, fmt.Errorf("%w: the ID is not valid UTF-8", ErrInvalid)
	}
	if id == "" && !bytes.HasPrefix(data, contenderStart) {
		return data, checkData(data)
	}
	return json.Marshal(contenderEnvelope{&contenderJSON{id, data}})
}

// openContender returns the ID and the Data of a contender from the data of its node,
// from which the envelope of a revocation request, if any, was removed. For a node of
// another implementation, Data is all of it.
func openContender(data []byte) (id string, own []byte) {
	var e contenderEnvelope
	if bytes.HasPrefix(data, contenderStart) && json.Unmarshal(data, &e) == nil && e.Contender != nil {
		return e.Contender.ID, e.Contender.Data
	}
	return "", data
}

func (l *line) contenders(ctx context.Context) ([]Contender, error) {
	return onSession(ctx, l.c, func(s *session) ([]Contender, error) { return s.contenders(ctx, l) })
}

func (s *session) contenders(ctx context.Context, l *line) ([]Contender, error) {
	names, err := s.list(ctx, l.dir)
	if err != nil {
		return nil, err
	}
	var list []Contender
	for _, q := range l.kinds.Order(names) {
		p := l.dir + "/" + q.Name
		data, stat, err := s.b.Get(ctx, p, nil)
		if isNotFound(err) {
			continue // deleted since the listing
		}
		if err != nil {
			return nil, err
		}
		_, own := openEnvelope(data)
		x := Contender{
			Path: p, Token: stat.Czxid, Session: stat.EphemeralOwner,
			Since: time.UnixMilli(stat.Ctime),
		}
		x.ID, x.Data = openContender(own)
		if q.Shared {
			x.Token = 0
		}
		list = append(list, x)
	}
	return list, nil
}
