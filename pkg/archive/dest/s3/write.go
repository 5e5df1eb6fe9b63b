package s3

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/tributary-dev/tributary/pkg/archive/dest"
)

const (
	sending  = 2      // parts on their way at once
	maxParts = 10_000 // of the store
)

// upload is the name under which an object carries the identity of its upload.
const upload = "tributary-upload"

// Create begins an object. The store hears of it with the first part that is full.
func (d *Dest) Create(ctx context.Context, key string) (dest.Writer, error) {
	object, err := d.object(key)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, d.fail("create", key, err)
	}
	w := &writer{d: d, key: key, object: object, identity: rand.Text(), slots: make(chan []byte, sending)}
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	for range sending {
		w.slots <- nil
	}
	return w, nil
}

type writer struct {
	ctx      context.Context
	cancel   context.CancelCauseFunc
	d        *Dest
	key      string
	object   *string
	identity string
	id       *string // of the multipart upload, once there is one
	number   int32   // of the last part begun
	buf      []byte  // of the part that is filling
	slots    chan []byte
	done     bool

	parts sync.WaitGroup
	mu    sync.Mutex
	sent  []types.CompletedPart
	err   error // the first of a part
}

// partSize grows, so that what does not fit in 10,000 parts of the first size does:
// 16 GiB in parts of 8 MiB, 144 GiB in parts of 32 MiB, 644 GiB in parts of 128 MiB.
func (w *writer) partSize() int {
	switch {
	case w.number < 2000:
		return w.d.c.PartSize
	case w.number < 6000:
		return 4 * w.d.c.PartSize
	}
	return 16 * w.d.c.PartSize
}

func (w *writer) Write(p []byte) (n int, err error) {
	if w.done {
		return 0, w.d.fail("write", w.key, os.ErrClosed)
	}
	for len(p) > 0 {
		k := min(len(p), w.partSize()-len(w.buf))
		w.buf = append(w.buf, p[:k]...)
		n, p = n+k, p[k:]
		if len(w.buf) < w.partSize() {
			break
		}
		if err := w.send(); err != nil {
			return n, w.d.fail("write", w.key, err)
		}
	}
	return n, w.failed()
}

func (w *writer) failed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.d.fail("write", w.key, w.err)
	}
	return nil
}

// send gives the part that is filling on its way, and waits while too many are.
func (w *writer) send() error {
	if w.number == maxParts {
		return errors.New("the object is larger than the store can take in parts of this size")
	}
	if w.id == nil {
		in := &awss3.CreateMultipartUploadInput{
			Bucket: &w.d.c.Bucket, Key: w.object, ChecksumAlgorithm: types.ChecksumAlgorithmCrc32c,
			Metadata: map[string]string{upload: w.identity},
		}
		in.ServerSideEncryption, in.SSEKMSKeyId = w.d.encryption()
		out, err := w.d.s3.CreateMultipartUpload(w.ctx, in)
		if err != nil {
			return err
		}
		w.id = out.UploadId
	}
	var free []byte
	select {
	case free = <-w.slots:
	case <-w.ctx.Done():
		return context.Cause(w.ctx)
	}
	w.number++
	number, part := w.number, w.buf
	w.buf = free[:0]
	w.parts.Go(func() {
		done, err := w.part(number, part)
		w.mu.Lock()
		defer w.mu.Unlock()
		if err != nil && w.err == nil {
			w.err = err
			w.cancel(err)
		}
		w.sent = append(w.sent, done)
		w.slots <- part
	})
	return nil
}

func (w *writer) part(number int32, data []byte) (types.CompletedPart, error) {
	sum := crc32c(data)
	out, err := w.d.s3.UploadPart(w.ctx, &awss3.UploadPartInput{
		Bucket: &w.d.c.Bucket, Key: w.object, UploadId: w.id, PartNumber: &number,
		Body: bytes.NewReader(data), ContentLength: aws.Int64(int64(len(data))), ChecksumCRC32C: sum,
	})
	if err != nil {
		return types.CompletedPart{}, err
	}
	done := types.CompletedPart{PartNumber: &number, ETag: out.ETag}
	if out.ChecksumCRC32C != nil { // a store that knows checksums wants them again
		done.ChecksumCRC32C = sum
	}
	return done, nil
}

func (w *writer) Commit() error {
	if w.done {
		return w.d.fail("commit", w.key, os.ErrClosed)
	}
	err := w.commit()
	if err != nil {
		w.Abort()
		return w.d.fail("commit", w.key, err)
	}
	w.done = true
	w.cancel(nil)
	return nil
}

func (w *writer) commit() error {
	if w.id == nil {
		_, err := w.d.put(w.ctx, w.object, w.buf, nil, nil)
		return err
	}
	if len(w.buf) > 0 {
		if err := w.send(); err != nil {
			return err
		}
	}
	w.parts.Wait()
	if w.err != nil {
		return w.err
	}
	slices.SortFunc(w.sent, func(a, b types.CompletedPart) int { return cmp.Compare(*a.PartNumber, *b.PartNumber) })
	_, err := w.d.s3.CompleteMultipartUpload(w.ctx, &awss3.CompleteMultipartUploadInput{
		Bucket: &w.d.c.Bucket, Key: w.object, UploadId: w.id, MultipartUpload: &types.CompletedMultipartUpload{Parts: w.sent},
	})
	if err != nil && w.completed() {
		return nil
	}
	return err
}

// completed reports whether the object is there though the answer said otherwise:
// that to the first attempt was lost, and to the second there was no such upload.
func (w *writer) completed() bool {
	out, err := w.d.s3.HeadObject(w.ctx, &awss3.HeadObjectInput{Bucket: &w.d.c.Bucket, Key: w.object})
	return err == nil && out.Metadata[upload] == w.identity
}

func (w *writer) Abort() {
	if w.done {
		return
	}
	w.done = true
	w.cancel(fmt.Errorf("writing was given up: %w", context.Canceled))
	w.parts.Wait()
	if w.id == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), w.d.c.Timeout)
	defer cancel()
	// If this fails, a lifecycle rule of the bucket has to do it.
	_, _ = w.d.s3.AbortMultipartUpload(ctx, &awss3.AbortMultipartUploadInput{Bucket: &w.d.c.Bucket, Key: w.object, UploadId: w.id})
}
