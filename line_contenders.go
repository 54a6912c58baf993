package coord

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"
)

// A Contender is somebody in line for a lock. The first of them has it.
type Contender struct {
	Path    string    // of its node, absolute
	Token   int64     // what Hold.Token is, or will be; zero for a reader, also one that was the writer
	Session int64     // that owns the node
	Since   time.Time // when it came, by the service's clock
	ID      string
	Data    []byte
}

// contenderJSON is what the ID and the Data of a contender for a lock are stored as.
type contenderJSON struct {
	ID   string `json:"id"`
	Data []byte `json:"data,omitempty"`
}

type contenderEnvelope struct {
	Contender *contenderJSON `json:"coord-contender"`
}

var contenderStart = []byte(`{"coord-contender":`)

// encodeContender returns the data of a contender's node: Data as it is if there is
// no ID and Data cannot be mistaken for an envelope.
func encodeContender(id string, data []byte) ([]byte, error) {
	if !utf8.ValidString(id) {
		return nil, fmt.Errorf("%w: the ID is no text", ErrInvalid)
	}
	if id == "" && !bytes.HasPrefix(data, contenderStart) {
		return data, checkData(data)
	}
	return json.Marshal(contenderEnvelope{&contenderJSON{id, data}})
}

// openContender returns the ID and the Data of a contender from the data of its node,
// without a request that stands around it. The data of other makes' nodes is Data.
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
	for _, q := range l.order(names) {
		p := l.dir + "/" + q.name
		data, stat, err := s.b.Get(ctx, p, nil)
		if isNotFound(err) {
			continue // gone since
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
		if q.shared {
			x.Token = 0
		}
		list = append(list, x)
	}
	return list, nil
}
