"""detect-video from Python, cell by cell. The tests run this file: `python docs/python_example.py`.

Needs detect-video and OpenCV only. Editors that know `# %%` show it as a notebook.
"""

# %% One picture
import cv2

from detector import Detector

clip = "videos/street.mp4"
detector = Detector(conf=0.4)  # street: person and vehicle; the best engine that is installed
capture = cv2.VideoCapture(clip)
image = capture.read()[1]  # u8 BGR [h, w, 3]
found = detector(image)
for one in found:
    print(f"{one.name:8} {one.score:.2f}", *(round(side) for side in one.box))

# %% Some of them
people = found.of("person")
sure = found[found.scores > 0.6]
print(len(found), "objects,", len(people), "people,", len(sure), "above 0.6")

# %% A picture of it
cv2.imwrite("annotated.png", found.draw(image, font_scale=1.2))

# %% A threshold and classes for one call; a list of pictures, or of paths
all_vehicles = detector(image, conf=0.1, classes=["vehicle"])
both = detector([image, "annotated.png"])
print(len(all_vehicles), [len(one) for one in both])

# %% A video: reading and inference run beside this loop
writer = None
for frame, found in detector.stream(clip):
    if writer is None:
        size = frame.source.width, frame.source.height
        codec = cv2.VideoWriter_fourcc(*"mp4v")
        writer = cv2.VideoWriter("out.mp4", codec, float(frame.source.fps), size)
    writer.write(found.draw(frame.image))
    if frame.index == 20:
        break  # leaving the loop stops the threads
writer.release()

# %% Plain values for JSON
print(found.to_dict()[0])

# %% The end
detector.close()
