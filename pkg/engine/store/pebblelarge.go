package store

import (
	"encoding/binary"
	"errors"

	"github.com/cockroachdb/pebble/v2"
)

// A large value is kept in pieces, each under a key of its own, of which the
// database sees none that is large: of one it would hold as many as five as it
// writes a table. At the value's key stands
//
//	uvarint(inPieces) uvarint(id) uvarint(n) uvarint(size)
//
// and what comes before the value otherwise. Pieces are written at once: nothing
// refers to them before the commit. They go with what refers to them; and those
// that no commit came to refer to, as a transaction is given up, or at open.

// pieces say where a large value is; n is 0 for one that is not.
type pieces struct {
	id   uint64 // of a row, in its table; the number of an entry
	n    int
	size int // of all together
}

// inPieces stands where other values have a number that is below it.
const inPieces = 1 << 33

// minPiece bounds the number of pieces where little is kept in memory.
const minPiece = 2 << 10

// large reports whether a value of so many bytes is kept in pieces.
func (p *Pebble) large(n int) bool { return n > p.opts.largeBytes() }

func (o *PebbleOptions) largeBytes() int { return min(spillChunk, o.TxBytes/2) }

func (i pieces) append(dst []byte) []byte {
	return appendUvarints(dst, inPieces, i.id, uint64(i.n), uint64(i.size))
}

// pieces reads what stands before a value, and the number with which that begins.
func (d *decoder) pieces() (in pieces, first uint64) {
	if first = d.uvarint(); first != inPieces {
		return in, first
	}
	in = pieces{id: d.uvarint(), n: int(d.uvarint()), size: int(d.uvarint())}
	if in.n <= 0 || in.size < in.n || in.size > 2*maxRecord {
		d.b, d.bad = nil, true
	}
	return in, d.uvarint()
}

func pieceKey(dst []byte, space byte, num uint32, id uint64, i int) []byte {
	return binary.BigEndian.AppendUint32(blockKey(dst, space, num, id), uint32(i))
}

// setPieces writes a value under a table or a log in pieces.
func (w *rowWriter) setPieces(space byte, num uint32, id uint64, value []byte) (in pieces, err error) {
	in = pieces{id: id, size: len(value)}
	if space != spaceRowIn || !w.fresh[num] {
		w.made = append(w.made, keyRange{blockKey(nil, space, num, id), blockKey(nil, space, num, id+1)})
	}
	out := w.p.newChunks()
	defer out.close()
	for most := max(minPiece, w.p.opts.largeBytes()/4); len(value) > 0; in.n++ {
		b, err := out.next()
		if err != nil {
			return in, err
		}
		n := min(most, len(value))
		w.piece = pieceKey(w.piece[:0], space, num, id, in.n)
		if err := b.Set(w.piece, value[:n], nil); err != nil {
			return in, err
		}
		value = value[n:]
	}
	return in, out.flush()
}

// deletePieces removes the pieces of a row.
func (w *rowWriter) deletePieces(num uint32, in pieces) {
	for i := range in.n {
		w.piece = pieceKey(w.piece[:0], spaceRowIn, num, in.id, i)
		w.delete(w.piece)
	}
}

// readPieces returns a value that is in pieces.
func readPieces(from pebble.Reader, space byte, num uint32, in pieces) ([]byte, error) {
	out := make([]byte, 0, in.size)
	var key []byte
	for i := range in.n {
		key = pieceKey(key[:0], space, num, in.id, i)
		v, done, err := get(from, key)
		if err != nil {
			return nil, err
		}
		if v == nil || len(v) > in.size-len(out) {
			err = errDamaged
		}
		out = append(out, v...)
		if done != nil {
			err = errors.Join(err, done.Close())
		}
		if err != nil {
			return nil, err
		}
	}
	if len(out) != in.size {
		return nil, errDamaged
	}
	return out, nil
}
